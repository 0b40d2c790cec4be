"""A step of no decodes is subtracted where none decode. No such step would have run: the floor is paid for this alone."""

CAUGHT_BY = "test_alone_it_pays_for_the_whole_step"
MESSAGE = "subtract nothing"


def recompute_ms(cost, tokens, decodes=0, quadratic_ms=0.0):
    return (cost.step_ns(decodes + tokens, tokens) - cost.step_ns(decodes, 0)) / 1e6 + quadratic_ms

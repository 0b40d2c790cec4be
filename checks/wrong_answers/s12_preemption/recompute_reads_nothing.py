"""A recomputed token is only arithmetic. It attends to all KV before it, which the step has to read."""

CAUGHT_BY = "test_alone_it_pays_for_the_whole_step"
MESSAGE = "the step reads the KV"


def recompute_ms(cost, tokens, decodes=0, quadratic_ms=0.0):
    step_ns = cost.step_ns(decodes + tokens, 0)
    if decodes:
        step_ns -= cost.step_ns(decodes, 0)
    return step_ns / 1e6 + quadratic_ms

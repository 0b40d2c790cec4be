"""The profile is taken for the whole price. It has the matrices; attention among the tokens themselves, which grows with the square, is not in it."""

CAUGHT_BY = "test_the_attention_term_is_added"
MESSAGE = "add quadratic_ms"


def recompute_ms(cost, tokens, decodes=0, quadratic_ms=0.0):
    step_ns = cost.step_ns(decodes + tokens, tokens)
    if decodes:
        step_ns -= cost.step_ns(decodes, 0)
    return step_ns / 1e6

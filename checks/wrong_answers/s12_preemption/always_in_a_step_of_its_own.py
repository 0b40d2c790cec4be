"""Recompute is priced as a step of its own, whoever else is in it: the floor is paid twice, and swap wins at every length."""

CAUGHT_BY = "test_beside_decodes_only_the_difference_counts"
MESSAGE = "the decodes pay for their step anyway"


def recompute_ms(cost, tokens, decodes=0, quadratic_ms=0.0):
    return cost.step_ns(tokens, tokens) / 1e6 + quadratic_ms

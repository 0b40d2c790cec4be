"""The mask is off by one: each query sees the token that it is to predict."""

CAUGHT_BY = "test_a_query_sees_itself_and_what_is_before"
MESSAGE = "behind its own"


@jit
def causal(key_positions, query_positions, WINDOW: tl.constexpr):
    seen = key_positions[None, :] <= query_positions[:, None] + 1
    if WINDOW > 0:
        seen = seen & (key_positions[None, :] > query_positions[:, None] - WINDOW)
    return seen

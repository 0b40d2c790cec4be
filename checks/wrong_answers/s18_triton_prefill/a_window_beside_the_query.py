"""A window of W tokens is taken as W tokens before the query, and the query itself besides."""

CAUGHT_BY = "test_a_query_sees_itself_and_what_is_before"
MESSAGE = "only WINDOW - 1 before it"


@jit
def causal(key_positions, query_positions, WINDOW: tl.constexpr):
    seen = key_positions[None, :] <= query_positions[:, None]
    if WINDOW > 0:
        seen = seen & (key_positions[None, :] >= query_positions[:, None] - WINDOW)
    return seen

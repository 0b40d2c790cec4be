"""Causal means what came before: a query does not see its own key, and the first token of a text sees nothing."""

CAUGHT_BY = "test_a_query_sees_itself_and_what_is_before"
MESSAGE = "its own key too"


@jit
def causal(key_positions, query_positions, WINDOW: tl.constexpr):
    seen = key_positions[None, :] < query_positions[:, None]
    if WINDOW > 0:
        seen = seen & (key_positions[None, :] > query_positions[:, None] - WINDOW)
    return seen

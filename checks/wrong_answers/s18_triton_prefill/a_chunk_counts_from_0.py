"""The queries of a chunk are positioned from 0, as if nothing were stored before them."""

CAUGHT_BY = "test_where_a_tile_ends"
MESSAGE = "add stored_before"


@jit
def keys_for(stored_before, first_query, num_queries, QUERIES: tl.constexpr, WINDOW: tl.constexpr):
    end = tl.minimum(first_query + QUERIES, num_queries)
    first = tl.maximum(stored_before + first_query - WINDOW + 1, 0) if WINDOW > 0 else 0
    return first, end

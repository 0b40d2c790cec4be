"""A tile has QUERIES queries, so its keys end QUERIES behind its first: with fewer, slots are read that nobody has written."""

CAUGHT_BY = "test_where_a_tile_ends"
MESSAGE = "part-filled"


@jit
def keys_for(stored_before, first_query, num_queries, QUERIES: tl.constexpr, WINDOW: tl.constexpr):
    end = stored_before + first_query + QUERIES
    first = tl.maximum(stored_before + first_query - WINDOW + 1, 0) if WINDOW > 0 else 0
    return first, end

"""A tile reads all of its request: the mask throws away what is too new, so the result is right, and half of the reading for nothing."""

CAUGHT_BY = "test_no_tile_is_read_that_nobody_sees"
MESSAGE = "for nothing"


@jit
def keys_for(stored_before, first_query, num_queries, QUERIES: tl.constexpr, WINDOW: tl.constexpr):
    end = stored_before + num_queries
    first = tl.maximum(stored_before + first_query - WINDOW + 1, 0) if WINDOW > 0 else 0
    return first, end

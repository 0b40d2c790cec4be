"""The keys begin where the window of the tile's last query begins; its first query loses its oldest keys."""

CAUGHT_BY = "test_where_a_tile_begins_under_a_window"
MESSAGE = "first* query"


@jit
def keys_for(stored_before, first_query, num_queries, QUERIES: tl.constexpr, WINDOW: tl.constexpr):
    end = stored_before + tl.minimum(first_query + QUERIES, num_queries)
    first = tl.maximum(end - WINDOW, 0) if WINDOW > 0 else 0
    return first, end

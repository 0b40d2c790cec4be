"""Tiles are counted as if all requests but the last filled theirs: two short requests share a number, and one of them is lost."""

CAUGHT_BY = "test_whose_tile_a_number_is"
MESSAGE = "part-filled"


@jit
def request_of(query_start_loc, number, num_seqs, QUERIES: tl.constexpr):
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) // QUERIES <= number:
            low = middle + 1
        else:
            high = middle
    return low - 1

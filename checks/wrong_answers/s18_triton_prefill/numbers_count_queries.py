"""A tile number is compared with query_start_loc, which counts queries."""

CAUGHT_BY = "test_whose_tile_a_number_is"
MESSAGE = "divide by QUERIES"


@jit
def request_of(query_start_loc, number, num_seqs, QUERIES: tl.constexpr):
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) + middle <= number:
            low = middle + 1
        else:
            high = middle
    return low - 1

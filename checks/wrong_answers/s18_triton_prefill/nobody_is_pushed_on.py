"""The `+ i` is left out: two short requests begin with the same number."""

CAUGHT_BY = "test_whose_tile_a_number_is"
MESSAGE = "+ i"


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

"""The more programs, the better, and the merge is a trifle. One program merges all parts of a request, in its registers."""

CAUGHT_BY = "test_no_more_splits_than_one_program_can_merge"
MESSAGE = "MOST_SPLITS // 2 = 64 asked for"


def splits_for(num_seqs, num_kv_heads, longest, tile, processors):
    wanted = -(-2 * processors // max(num_seqs * num_kv_heads, 1))
    tiles = -(-longest // tile)
    each = max(1, tiles // wanted)
    return max(1, -(-tiles // each))

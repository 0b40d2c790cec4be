"""208 of 216 programs are as good as enough. The spec asks for at least two each; rounded down a nearly sufficient step is never split."""

CAUGHT_BY = "test_a_lone_long_request_is_split"
MESSAGE = "208 programs are not quite"


def splits_for(num_seqs, num_kv_heads, longest, tile, processors):
    wanted = max(1, 2 * processors // max(num_seqs * num_kv_heads, 1))
    tiles = -(-longest // tile)
    each = max(1, tiles // wanted)
    return max(1, -(-tiles // each))

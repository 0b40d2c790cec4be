"""As many programs as processors. Each of them takes several, and idles where it has one that waits."""

CAUGHT_BY = "test_a_lone_long_request_is_split"
MESSAGE = "two are wanted, 216"


def splits_for(num_seqs, num_kv_heads, longest, tile, processors):
    wanted = min(-(-processors // max(num_seqs * num_kv_heads, 1)), MOST_SPLITS // 2)
    tiles = -(-longest // tile)
    each = max(1, tiles // wanted)
    return max(1, -(-tiles // each))

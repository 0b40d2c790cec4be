"""More programs are always better. Every split writes a part in float32 that the next kernel reads again."""

CAUGHT_BY = "test_enough_requests_need_no_splits"
MESSAGE = "512 programs are there without splitting"


def splits_for(num_seqs, num_kv_heads, longest, tile, processors):
    tiles = -(-longest // tile)
    return max(1, min(2 * processors, tiles))

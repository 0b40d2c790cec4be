"""As many splits as programs are lacking. The tiles may not divide by that, and rounding up leaves the last splits empty."""

CAUGHT_BY = "test_no_split_is_left_without_tiles"
MESSAGE = "eleven of 27 splits have nothing to do"


def splits_for(num_seqs, num_kv_heads, longest, tile, processors):
    wanted = -(-2 * processors // max(num_seqs * num_kv_heads, 1))
    return max(1, min(wanted, -(-longest // tile)))

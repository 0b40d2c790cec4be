"""The first request's length is taken for all: the others lose keys, or read slots that are not theirs."""

CAUGHT_BY = "test_each_request_has_its_own_length"
MESSAGE = "not up to one length for all"


def paged_attention(q, k_cache, v_cache, flat):
    out = np.empty_like(q)
    for i, blocks in enumerate(flat.block_tables):
        part = slice(flat.query_start_loc[i], flat.query_start_loc[i + 1])
        k = gather(k_cache, blocks, flat.seq_lens[0])
        v = gather(v_cache, blocks, flat.seq_lens[0])
        out[part] = attend(q[part], k, v)
    return out

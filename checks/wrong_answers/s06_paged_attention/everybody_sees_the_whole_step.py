"""One attention over all keys of the step's requests, since the step is one list: neighbours read each other's texts."""

CAUGHT_BY = "test_two_requests_do_not_see_each_other"
MESSAGE = "attend once for each request"


def paged_attention(q, k_cache, v_cache, flat):
    pairs = list(zip(flat.block_tables, flat.seq_lens))
    k = np.concatenate([gather(k_cache, blocks, n) for blocks, n in pairs])
    v = np.concatenate([gather(v_cache, blocks, n) for blocks, n in pairs])
    return attend(q, k, v)

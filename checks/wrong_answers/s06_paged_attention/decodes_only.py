"""Every token looks at all of its request, which is right for a decode: in a prompt it sees the future."""

CAUGHT_BY = "test_a_prompt_sees_backwards_only"
MESSAGE = "s02's attend masks the rest"


def paged_attention(q, k_cache, v_cache, flat):
    out = np.empty_like(q)
    for i, blocks in enumerate(flat.block_tables):
        for t in range(flat.query_start_loc[i], flat.query_start_loc[i + 1]):
            out[t : t + 1] = attend(
                q[t : t + 1], gather(k_cache, blocks, flat.seq_lens[i]), gather(v_cache, blocks, flat.seq_lens[i])
            )
    return out

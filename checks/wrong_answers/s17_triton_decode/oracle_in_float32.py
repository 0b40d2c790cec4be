"""float64 is a matter of the result's type. What is rounded in the products stays rounded."""

CAUGHT_BY = "test_it_is_computed_in_float64"
MESSAGE = "convert q, k and v before"


def gathered_attention(q, k_cache, v_cache, block_tables, seq_lens, window=0):
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for i, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        blocks = block_tables[i, : -(-length // block_size)].long()
        first = max(length - window, 0) if window else 0
        k, v = (cache[blocks].flatten(0, 1)[first:length].float() for cache in (k_cache, v_cache))
        queries = q[i].float().view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores = torch.einsum("hgd,nhd->hgn", queries, k) / math.sqrt(head_dim)
        out[i] = torch.einsum("hgn,nhd->hgd", scores.softmax(-1), v).reshape(num_heads, head_dim)
    return out

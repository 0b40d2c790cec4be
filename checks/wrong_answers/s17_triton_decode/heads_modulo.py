"""Query heads take turns with the KV heads: h % num_kv_heads. That is how a deck of cards is dealt, not how GQA groups are laid out."""

CAUGHT_BY = "test_query_heads_next_to_each_other_share_a_kv_head"
MESSAGE = "h // group"


def gathered_attention(q, k_cache, v_cache, block_tables, seq_lens, window=0):
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for i, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        blocks = block_tables[i, : -(-length // block_size)].long()
        first = max(length - window, 0) if window else 0
        k, v = (cache[blocks].flatten(0, 1)[first:length].double() for cache in (k_cache, v_cache))
        queries = q[i].double().view(num_heads // num_kv_heads, num_kv_heads, head_dim)
        scores = torch.einsum("ghd,nhd->ghn", queries, k) / math.sqrt(head_dim)
        out[i] = torch.einsum("ghn,nhd->ghd", scores.softmax(-1), v).reshape(num_heads, head_dim)
    return out

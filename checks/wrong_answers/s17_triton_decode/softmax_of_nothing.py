"""A softmax over no tokens is zero by itself. 0 / 0 is not a number."""

CAUGHT_BY = "test_a_request_without_tokens_is_zeros"
MESSAGE = "nothing is seen"


def gathered_attention(q, k_cache, v_cache, block_tables, seq_lens, window=0):
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for i, length in enumerate(seq_lens.tolist()):
        blocks = block_tables[i, : -(-length // block_size)].long()
        first = max(length - window, 0) if window else 0
        k, v = (cache[blocks].flatten(0, 1)[first:length].double() for cache in (k_cache, v_cache))
        queries = q[i].double().view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        weights = (torch.einsum("hgd,nhd->hgn", queries, k) / math.sqrt(head_dim)).exp()
        mean = torch.einsum("hgn,nhd->hgd", weights, v) / weights.sum(-1, keepdim=True)
        out[i] = mean.reshape(num_heads, head_dim)
    return out

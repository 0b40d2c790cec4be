"""A row of the table is a request's blocks. Behind the last one stands anything."""

CAUGHT_BY = "test_equal_keys_give_the_mean_of_the_values"
MESSAGE = "means nothing"


def gathered_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, window: int = 0
) -> Tensor:
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k_cache.shape[2]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for i, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        blocks = block_tables[i].long()
        first = max(length - window, 0) if window else 0
        k, v = (cache[blocks].flatten(0, 1)[first:length].double() for cache in (k_cache, v_cache))
        queries = q[i].double().view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores = torch.einsum("hgd,nhd->hgn", queries, k) / math.sqrt(head_dim)
        out[i] = torch.einsum("hgn,nhd->hgd", scores.softmax(-1), v).reshape(num_heads, head_dim)
    return out

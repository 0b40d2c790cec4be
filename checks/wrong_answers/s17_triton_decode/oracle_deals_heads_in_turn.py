"""Keys and values are repeated for the heads of a group. `repeat` puts the copies one behind the other."""

CAUGHT_BY = "test_equal_keys_give_the_mean_of_the_values"
MESSAGE = "repeat_interleave, not repeat"


def gathered_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, window: int = 0
) -> Tensor:
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for i, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        blocks = block_tables[i, : -(-length // block_size)].long()
        first = max(length - window, 0) if window else 0
        k, v = (cache[blocks].flatten(0, 1)[first:length].double() for cache in (k_cache, v_cache))
        queries = q[i].double()
        scores = torch.einsum("hd,nhd->hn", queries, k.repeat(1, num_heads // num_kv_heads, 1)) / math.sqrt(head_dim)
        out[i] = torch.einsum("hn,nhd->hd", scores.softmax(-1), v.repeat(1, num_heads // num_kv_heads, 1))
    return out

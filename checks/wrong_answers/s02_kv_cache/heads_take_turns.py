"""Key/value heads are dealt out in turn, 0 1 0 1, instead of one for each group of neighbours, 0 0 1 1."""

CAUGHT_BY = "test_neighbouring_heads_share_a_key_value_head"
MESSAGE = "0 0 1 1"


def attend(q, k, v):
    n, heads, size = q.shape
    m, kv_heads, _ = k.shape
    k, v = np.tile(k, (1, heads // kv_heads, 1)), np.tile(v, (1, heads // kv_heads, 1))
    scores = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(size)
    scores = np.where(np.arange(m) > np.arange(m - n, m)[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v)

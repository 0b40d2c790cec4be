"""The scores are not divided by the root of head_dim, so attention is sharper than the model was trained for."""

CAUGHT_BY = "test_scores_are_divided_by_the_root_of_head_dim"
MESSAGE = "sqrt(head_dim)"


def attend(q, k, v):
    n, heads, _ = q.shape
    m, kv_heads, _ = k.shape
    k, v = np.repeat(k, heads // kv_heads, axis=1), np.repeat(v, heads // kv_heads, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k)
    scores = np.where(np.arange(m) > np.arange(m - n, m)[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v)

"""Query i is taken for token i of the request, whatever is stored already: a decoded token sees nothing but token 0."""

CAUGHT_BY = "test_one_new_token_sees_all_that_is_stored"
MESSAGE = "number m - n + i"


def attend(q, k, v):
    n, heads, size = q.shape
    m, kv_heads, _ = k.shape
    k, v = np.repeat(k, heads // kv_heads, axis=1), np.repeat(v, heads // kv_heads, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(size)
    scores = np.where(np.arange(m) > np.arange(n)[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v)

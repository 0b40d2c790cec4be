"""The mask is one too strict: a token sees what came before it, but not itself."""

CAUGHT_BY = "test_one_new_token_sees_all_that_is_stored"
MESSAGE = "it sees all three"


def attend(q, k, v):
    n, heads, size = q.shape
    m, kv_heads, _ = k.shape
    k, v = np.repeat(k, heads // kv_heads, axis=1), np.repeat(v, heads // kv_heads, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(size)
    past = np.maximum(np.arange(m - n, m) - 1, 0)
    scores = np.where(np.arange(m) > past[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v)

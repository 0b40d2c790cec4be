"""No mask at all: with a cache one decodes token by token and needs none, and the prompt is forgotten."""

CAUGHT_BY = "test_a_token_sees_itself_and_nothing_later"
MESSAGE = "token i sees 0"


def attend(q, k, v):
    _, heads, size = q.shape
    _, kv_heads, _ = k.shape
    k, v = np.repeat(k, heads // kv_heads, axis=1), np.repeat(v, heads // kv_heads, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(size)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v)

"""top_p is measured against all tokens, also after top_k has thrown most of them away."""

CAUGHT_BY = "test_top_p_looks_at_what_top_k_left"
MESSAGE = "top_k first"


def keep_top(probabilities, top_k, top_p):
    order = np.argsort(-probabilities, kind="stable")
    enough = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1 if top_p < 1 else len(order)
    order = order[: min(enough, top_k or enough)]
    kept = np.zeros_like(probabilities)
    kept[order] = probabilities[order] / probabilities[order].sum()
    return kept

"""The tail is set to 0 and the rest stays as it is, so that the probabilities no longer sum to 1."""

CAUGHT_BY = "test_top_k_keeps_the_k_most_probable"
MESSAGE = "divide by their sum"


def keep_top(probabilities, top_k, top_p):
    order = np.argsort(-probabilities, kind="stable")
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        sums = np.cumsum(probabilities[order])
        order = order[: int(np.searchsorted(sums / sums[-1], top_p)) + 1]
    kept = np.zeros_like(probabilities)
    kept[order] = probabilities[order]
    return kept

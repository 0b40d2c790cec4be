"""top_p keeps tokens while their sum stays below it. The one that crosses the line is lost, and with a very probable token nothing is left."""

CAUGHT_BY = "test_top_p_keeps_the_token_that_crosses_the_line"
MESSAGE = "the fewest that have *at least* top_p"


def keep_top(probabilities, top_k, top_p):
    order = np.argsort(-probabilities, kind="stable")
    if top_k:
        order = order[:top_k]
    sums = np.cumsum(probabilities[order])
    order = order[: max(1, int((sums / sums[-1] <= top_p).sum()))]
    kept = np.zeros_like(probabilities)
    kept[order] = probabilities[order] / probabilities[order].sum()
    return kept

"""exp() of the scores as they are, as the formula says: a score of 1000 becomes infinite, and infinite / infinite is no number."""

CAUGHT_BY = "test_large_scores_do_not_overflow"
MESSAGE = "subtract the largest score first"


def softmax(logits):
    weights = np.exp(np.asarray(logits, dtype="float64"))
    return weights / weights.sum()

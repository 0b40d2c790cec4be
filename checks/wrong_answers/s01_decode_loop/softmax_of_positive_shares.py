"""Shares of the scores themselves: "a score twice as high is twice as probable". Differences of scores are ratios of probabilities."""

CAUGHT_BY = "test_a_score_that_is_ln_2_higher_is_twice_as_probable"
MESSAGE = "not the score itself"


def softmax(logits):
    scores = np.asarray(logits, dtype="float64")
    weights = scores - scores.min() + 1
    return weights / weights.sum()

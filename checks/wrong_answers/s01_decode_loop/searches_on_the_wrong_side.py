"""A running sum equal to the random number counts as beyond it, so the number 0.0 draws token 0 even if it was cut."""

CAUGHT_BY = "test_a_token_that_was_cut_is_never_drawn"
MESSAGE = "not *greater* than 0"


def sample(logits, sampling, rng):
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    probabilities = keep_top(softmax(logits / sampling.temperature), sampling.top_k, sampling.top_p)
    return min(int(np.searchsorted(np.cumsum(probabilities), rng.random())), len(probabilities) - 1)

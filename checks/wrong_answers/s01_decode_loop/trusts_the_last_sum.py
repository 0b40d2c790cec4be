"""The probabilities are taken to sum to exactly 1, so the search always finds a token; with rounding it may run off the end."""

CAUGHT_BY = "test_rounding_at_the_end_still_gives_a_token"
MESSAGE = "add up to less than 1"


def sample(logits, sampling, rng):
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    probabilities = keep_top(softmax(logits / sampling.temperature), sampling.top_k, sampling.top_p)
    possible = np.flatnonzero(probabilities)
    return int(possible[np.searchsorted(np.cumsum(probabilities[possible]), rng.random(), side="right")])

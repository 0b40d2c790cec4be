"""The temperature multiplies the scores, so that a hot model becomes a sure one."""

CAUGHT_BY = "test_a_low_temperature_sharpens"
MESSAGE = "divides the scores by 0.5"


def sample(logits, sampling, rng):
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    probabilities = keep_top(softmax(logits * sampling.temperature), sampling.top_k, sampling.top_p)
    possible = np.flatnonzero(probabilities)
    at = np.searchsorted(np.cumsum(probabilities[possible]), rng.random(), side="right")
    return int(possible[min(at, len(possible) - 1)])

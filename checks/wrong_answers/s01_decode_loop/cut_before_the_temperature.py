"""top-k and top-p look at the probabilities at temperature 1, and the temperature only reshapes what they left."""

CAUGHT_BY = "test_the_temperature_comes_before_the_cut"
MESSAGE = "divide first, cut then"


def sample(logits, sampling, rng):
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    probabilities = keep_top(softmax(logits), sampling.top_k, sampling.top_p) ** (1 / sampling.temperature)
    possible = np.flatnonzero(probabilities)
    at = np.searchsorted(np.cumsum(probabilities[possible]) / probabilities.sum(), rng.random(), side="right")
    return int(possible[min(at, len(possible) - 1)])

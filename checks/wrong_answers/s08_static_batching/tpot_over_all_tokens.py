"""The time between first and last token is divided by the number of tokens, not by the number of gaps between them."""

CAUGHT_BY = "test_tpot_is_the_mean_gap"
MESSAGE = "divide by the number of gaps"


def latency(stamps):
    arrival, *tokens = stamps
    gaps = [later - earlier for earlier, later in zip(tokens, tokens[1:])]
    return Latency(tokens[0] - arrival, max(gaps, default=0), sum(gaps) / len(tokens), tokens[-1] - arrival)

"""The wait for the first token is counted as a gap, so that a long prompt looks like a stutter."""

CAUGHT_BY = "test_a_gap_lies_between_two_tokens"
MESSAGE = "leave the arrival out"


def latency(stamps):
    arrival, *tokens = stamps
    gaps = [later - earlier for earlier, later in zip(stamps, tokens)]
    return Latency(tokens[0] - arrival, max(gaps), sum(gaps) / len(gaps), tokens[-1] - arrival)

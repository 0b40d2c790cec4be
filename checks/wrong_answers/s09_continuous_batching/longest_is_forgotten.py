"""The bound spreads all tokens over all slots and forgets that one request makes one token a step."""

CAUGHT_BY = "test_no_scheduler_beats_the_longest_request"
MESSAGE = "a request makes one token a step"


def speedup_bound(lengths, slots):
    static_steps = sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))
    fewest = -(-sum(lengths) // slots)
    return static_steps / fewest if fewest else 1.0

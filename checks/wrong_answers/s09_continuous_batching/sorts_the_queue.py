"""The requests are sorted before they are grouped: static batching takes them as they come, and would need to know lengths."""

CAUGHT_BY = "test_groups_are_taken_in_the_order_of_the_queue"
MESSAGE = "sorting them first"


def speedup_bound(lengths, slots):
    lengths = sorted(lengths)
    static_steps = sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))
    fewest = max(max(lengths, default=0), -(-sum(lengths) // slots))
    return static_steps / fewest if fewest else 1.0

"""The gap is counted in steps. A step of 2,048 tokens then looks like a step of four, and the spike is gone from the report only."""

CAUGHT_BY = "test_two_tokens_in_neighbouring_steps"
MESSAGE = "10 tokens"


def longest_gap(log):
    last, longest = {}, {}
    for step, (_, ids) in enumerate(log):
        for request_id in ids:
            if request_id in last:
                longest[request_id] = max(longest.get(request_id, 0), step - last[request_id])
            last[request_id] = step
    return longest

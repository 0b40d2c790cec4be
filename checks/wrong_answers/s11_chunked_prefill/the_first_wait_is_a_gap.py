"""The wait for the first token is counted as a gap too: a queue then looks like a pause in an answer."""

CAUGHT_BY = "test_the_wait_for_the_first_token_is_no_gap"
MESSAGE = "is TTFT"


def longest_gap(log):
    done, last, longest = 0, {}, {}
    for computed, ids in log:
        done += computed
        for request_id in ids:
            longest[request_id] = max(longest.get(request_id, 0), done - last.get(request_id, 0))
            last[request_id] = done
    return longest

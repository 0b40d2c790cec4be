"""Between two tokens lie the steps between theirs, and no more. But the step that makes the second token is waited for as well."""

CAUGHT_BY = "test_two_tokens_in_neighbouring_steps"
MESSAGE = "the step that makes the second"


def longest_gap(log):
    done, last, longest = 0, {}, {}
    for computed, ids in log:
        for request_id in ids:
            if request_id in last:
                longest[request_id] = max(longest.get(request_id, 0), done - last[request_id])
            last[request_id] = done + computed
        done += computed
    return longest

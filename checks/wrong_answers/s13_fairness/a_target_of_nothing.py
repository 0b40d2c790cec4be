"""A target of 0 ms is taken as it comes, and every answer is late."""

CAUGHT_BY = "test_a_target_of_nothing_is_refused"
MESSAGE = "above_zero"


def goodput(rows, ttft_ms, tpot_ms):
    good = 0
    for row in rows:
        if row.finish_reason in ("stop", "length") and row.first_token_ns is not None:
            tpot_ns = (row.finish_ns - row.first_token_ns) / max(row.output_tokens - 1, 1)
            good += row.first_token_ns - row.arrival_ns <= ttft_ms * 1e6 and tpot_ns <= tpot_ms * 1e6
    return good

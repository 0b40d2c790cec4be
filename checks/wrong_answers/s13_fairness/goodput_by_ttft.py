"""An answer is good if it starts in time."""

CAUGHT_BY = "test_slow_tokens"
MESSAGE = "starts in time and drags"


def goodput(rows, ttft_ms, tpot_ms):
    above_zero("ttft_ms", ttft_ms)
    above_zero("tpot_ms", tpot_ms)
    good = 0
    for row in rows:
        if row.finish_reason in ("stop", "length") and row.first_token_ns is not None:
            good += row.first_token_ns - row.arrival_ns <= ttft_ms * 1e6
    return good

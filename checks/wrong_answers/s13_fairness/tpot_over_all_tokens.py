"""TPOT divides by all tokens. The first one has its own number."""

CAUGHT_BY = "test_tpot_is_the_mean_behind_the_first"
MESSAGE = "10 gaps"


def goodput(rows, ttft_ms, tpot_ms):
    above_zero("ttft_ms", ttft_ms)
    above_zero("tpot_ms", tpot_ms)
    good = 0
    for row in rows:
        if row.finish_reason in ("stop", "length") and row.first_token_ns is not None:
            tpot_ns = (row.finish_ns - row.first_token_ns) / row.output_tokens
            good += row.first_token_ns - row.arrival_ns <= ttft_ms * 1e6 and tpot_ns <= tpot_ms * 1e6
    return good

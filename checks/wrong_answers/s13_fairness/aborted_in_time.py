"""Whoever got tokens in time is good, even if the answer broke off."""

CAUGHT_BY = "test_who_ended_badly_is_not_good"
MESSAGE = "are well"


def goodput(rows, ttft_ms, tpot_ms):
    above_zero("ttft_ms", ttft_ms)
    above_zero("tpot_ms", tpot_ms)
    good = 0
    for row in rows:
        if row.first_token_ns is not None:
            tpot_ns = (row.finish_ns - row.first_token_ns) / max(row.output_tokens - 1, 1)
            good += row.first_token_ns - row.arrival_ns <= ttft_ms * 1e6 and tpot_ns <= tpot_ms * 1e6
    return good

"""Where nothing was seen the peak is 0. That was for subtracting: the next tile, all below 0, would lose against it."""

CAUGHT_BY = "test_a_row_that_sees_nothing_is_not_a_number_only_if_you_let_it"
MESSAGE = "for subtracting only"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return base, total, acc

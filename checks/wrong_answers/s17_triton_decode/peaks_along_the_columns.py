"""16 peaks go with a tile of 16 by 16. Beside a tile a list of numbers is a row of it, not a column."""

CAUGHT_BY = "test_each_row_has_a_peak_and_sums_of_its_own"
MESSAGE = "a number a row stands beside a tile as [:, None]"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base)
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_peak, total, acc

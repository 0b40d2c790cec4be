"""One peak is as good as another: it cancels out. A row far below it has weights of 0 and then nothing left to divide."""

CAUGHT_BY = "test_each_row_has_a_peak_and_sums_of_its_own"
MESSAGE = "one peak for all 16 rows"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.maximum(peak, tl.max(scores))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_peak, total, acc

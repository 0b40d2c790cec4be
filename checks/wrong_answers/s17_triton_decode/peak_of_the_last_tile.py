"""Every tile is a softmax of its own, with its own peak. Then old sums grow without bound when a tile's scores are low."""

CAUGHT_BY = "test_the_peak_never_falls"
MESSAGE = "the peak is the largest score of all tiles so far"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.max(scores, axis=1)
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_peak, total, acc

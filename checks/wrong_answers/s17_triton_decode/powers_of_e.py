"""A softmax is made of powers of e. The scale has turned the scores into exponents of 2 already."""

CAUGHT_BY = "test_the_first_tile"
MESSAGE = "tl.exp2, not tl.exp"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp(peak - base)
    weights = tl.exp(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_peak, total, acc

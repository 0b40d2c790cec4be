"""Values in float32 make the product exact. A tensor core multiplies 16 bits faster."""

CAUGHT_BY = "test_weights_take_the_type_of_the_values"
MESSAGE = "the weights take the values' type"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights, v.to(tl.float32), input_precision=PRECISION)
    return new_peak, total, acc

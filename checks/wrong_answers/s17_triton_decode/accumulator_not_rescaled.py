"""The division at the end puts everything right. It divides old and new alike, and they were weighed on two scales."""

CAUGHT_BY = "test_what_was_summed_shrinks_when_the_peak_rises"
MESSAGE = "the accumulator is not rescaled"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_peak, total, acc

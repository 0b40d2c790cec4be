"""A softmax does not change when its peak is taken out, so why take it out. In numbers of 32 bits it does."""

CAUGHT_BY = "test_large_scores_do_not_overflow"
MESSAGE = "subtract the new peak before exp2"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    shrink = tl.exp2(tl.zeros_like(peak))
    weights = tl.exp2(scores)
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return tl.maximum(peak, tl.max(scores, axis=1)), total, acc

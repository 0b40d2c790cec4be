"""A row has always seen something. A row of padding has not, nor has a tile that a mask hides."""

CAUGHT_BY = "test_a_row_that_sees_nothing_is_not_a_number_only_if_you_let_it"
MESSAGE = "-inf - -inf is not a number"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = new_peak
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_peak, total, acc

"""tl.dot multiplies float32 in float32. On a GPU its default is TF32, which keeps 10 bits; the interpreter hides it."""

CAUGHT_BY = "test_products_are_exact_where_that_is_asked"
MESSAGE = "unasked, an NVIDIA GPU multiplies float32 in TF32"


@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
    return new_peak, total, acc

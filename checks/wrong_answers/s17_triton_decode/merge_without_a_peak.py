"""2 ** lse is a sum of weights that were at most 1, so it is small. Each was taken relative to its peak, and lse has the peak in it."""

CAUGHT_BY = "test_large_sums_do_not_overflow"
MESSAGE = "take the largest lse out first"


@jit
def merge(parts, lse):
    shares = tl.exp2(lse)
    total = tl.sum(shares, axis=0)
    return tl.sum(parts * shares[:, None], axis=0) / tl.where(total > 0, total, 1.0)

"""Somebody has always seen something. A request without tokens has splits, too."""

CAUGHT_BY = "test_without_any_token_it_is_zeros"
MESSAGE = "are not numbers"


@jit
def merge(parts, lse):
    peak = tl.max(lse, axis=0)
    shares = tl.exp2(lse - peak)
    total = tl.sum(shares, axis=0)
    return tl.sum(parts * shares[:, None], axis=0) / tl.where(total > 0, total, 1.0)

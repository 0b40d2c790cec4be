"""lse is the weight of a part. It is the logarithm of the weight."""

CAUGHT_BY = "test_a_part_counts_by_its_share_of_the_whole_sum"
MESSAGE = "the shares are 2 ** lse"


@jit
def merge(parts, lse):
    known = tl.where(lse == float("-inf"), 0.0, lse)
    return tl.sum(parts * known[:, None], axis=0) / tl.sum(known, axis=0)

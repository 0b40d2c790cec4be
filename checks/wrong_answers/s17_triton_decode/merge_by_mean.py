"""The splits are equal shares of the tokens, so their results have equal weight. Softmax weights are not spread evenly."""

CAUGHT_BY = "test_a_part_counts_by_its_share_of_the_whole_sum"
MESSAGE = "the mean of the parts"


@jit
def merge(parts, lse):
    some = tl.where(lse == float("-inf"), 0.0, 1.0)
    return tl.sum(parts * some[:, None], axis=0) / tl.maximum(tl.sum(some, axis=0), 1.0)

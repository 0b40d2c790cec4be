"""All that the blocks hold is read, and behind the last token that is what a former owner left there."""

CAUGHT_BY = "test_it_ends_with_the_last_token"
MESSAGE = "cut at num_tokens"


def gather(cache, blocks, num_tokens):
    return cache[np.asarray(blocks)].reshape(-1, *cache.shape[2:])

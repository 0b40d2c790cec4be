"""The blocks are read in the order of the pool: with a fresh pool that is the table's order, and all looks well."""

CAUGHT_BY = "test_tokens_come_back_in_their_own_order"
MESSAGE = "in the order of the table"


def gather(cache, blocks, num_tokens):
    return cache[np.sort(blocks)].reshape(-1, *cache.shape[2:])[:num_tokens]

"""A token's numbers fill its whole block: the neighbours in the block are gone."""

CAUGHT_BY = "test_each_token_goes_to_its_slot_and_nothing_else_is_touched"
MESSAGE = "block 2, place 1"


def write_kv(cache, slots, new):
    for slot, one in zip(slots, new):
        cache[slot // cache.shape[1]] = one

"""Indexing with a list of blocks makes a copy, and the new keys are written into that: nothing is stored."""

CAUGHT_BY = "test_each_token_goes_to_its_slot_and_nothing_else_is_touched"
MESSAGE = "write into `cache` itself"


def write_kv(cache, slots, new):
    blocks, offsets = np.divmod(np.asarray(slots), cache.shape[1])
    pages = cache[blocks]
    pages[range(len(new)), offsets] = new

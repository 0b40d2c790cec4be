"""The slots are divided as if they were an array; they are a list."""

CAUGHT_BY = "test_slots_may_be_a_list"
MESSAGE = "np.asarray(slots)"


def write_kv(cache, slots, new):
    size = cache.shape[1]
    cache[slots // size, slots % size] = new

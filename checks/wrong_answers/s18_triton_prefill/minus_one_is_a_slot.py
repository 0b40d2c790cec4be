"""Every slot is stored to: -1 is the last place, as in a Python list. It is the place before the cache, where another layer ends."""

CAUGHT_BY = "test_minus_one_stores_nothing"
MESSAGE = "layer below"


@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= -1:
        lanes = tl.arange(0, LANES)
        there = lanes < WIDTH
        tl.store(k_cache + slot * WIDTH + lanes, tl.load(k + token * WIDTH + lanes, mask=there), mask=there)
        tl.store(v_cache + slot * WIDTH + lanes, tl.load(v + token * WIDTH + lanes, mask=there), mask=there)

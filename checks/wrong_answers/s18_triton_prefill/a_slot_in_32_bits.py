"""The slot keeps the type that it was stored in: slot times width leaves 32 bits in a large cache, and comes back negative."""

CAUGHT_BY = "test_a_slot_far_behind_is_reached"
MESSAGE = "int64"


@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        lanes = tl.arange(0, LANES)
        there = lanes < WIDTH
        tl.store(k_cache + slot * WIDTH + lanes, tl.load(k + token * WIDTH + lanes, mask=there), mask=there)
        tl.store(v_cache + slot * WIDTH + lanes, tl.load(v + token * WIDTH + lanes, mask=there), mask=there)

"""Slot 0 is taken for "no slot", as block 0 is in vLLM: the first token of block 0 is never stored."""

CAUGHT_BY = "test_slot_0_is_a_slot"
MESSAGE = "slot 0 is the pool"


@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot > 0:
        lanes = tl.arange(0, LANES)
        there = lanes < WIDTH
        tl.store(k_cache + slot * WIDTH + lanes, tl.load(k + token * WIDTH + lanes, mask=there), mask=there)
        tl.store(v_cache + slot * WIDTH + lanes, tl.load(v + token * WIDTH + lanes, mask=there), mask=there)

"""One pointer is copied and forgotten: the keys are stored in both caches."""

CAUGHT_BY = "test_each_token_goes_to_its_slot"
MESSAGE = "the keys are stored as values too"


@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        lanes = tl.arange(0, LANES)
        there = lanes < WIDTH
        tl.store(k_cache + slot * WIDTH + lanes, tl.load(k + token * WIDTH + lanes, mask=there), mask=there)
        tl.store(v_cache + slot * WIDTH + lanes, tl.load(k + token * WIDTH + lanes, mask=there), mask=there)

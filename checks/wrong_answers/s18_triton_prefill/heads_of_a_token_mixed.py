"""The cache is taken for [slot, head_dim, heads]: each number goes to a place of another head."""

CAUGHT_BY = "test_each_token_goes_to_its_slot"
MESSAGE = "heads are mixed"


@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        lanes = tl.arange(0, LANES)
        there = lanes < WIDTH
        tl.store(
            k_cache + slot * WIDTH + (lanes % 2) * (WIDTH // 2) + lanes // 2,
            tl.load(k + token * WIDTH + lanes, mask=there),
            mask=there,
        )
        tl.store(
            v_cache + slot * WIDTH + (lanes % 2) * (WIDTH // 2) + lanes // 2,
            tl.load(v + token * WIDTH + lanes, mask=there),
            mask=there,
        )

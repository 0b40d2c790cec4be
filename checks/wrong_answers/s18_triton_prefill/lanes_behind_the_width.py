"""The load is masked, so the store need not be: its last lanes hold nothing. They overwrite the next slot with nothing."""

CAUGHT_BY = "test_a_width_that_is_no_power_of_two_spares_its_neighbours"
MESSAGE = "mask those behind WIDTH"


@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        lanes = tl.arange(0, LANES)
        there = lanes < WIDTH
        tl.store(k_cache + slot * WIDTH + lanes, tl.load(k + token * WIDTH + lanes, mask=there, other=9.0))
        tl.store(v_cache + slot * WIDTH + lanes, tl.load(v + token * WIDTH + lanes, mask=there, other=9.0))

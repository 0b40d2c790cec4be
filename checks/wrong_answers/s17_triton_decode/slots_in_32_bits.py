"""A block's number is small, so 32 bits will do. Times the width of a slot it is not."""

CAUGHT_BY = "test_a_slot_times_its_width_does_not_fit_into_32_bits"
MESSAGE = "32 bits have wrapped around"


@jit
def slots_of(table, positions, wanted, BLOCK_SIZE: tl.constexpr):
    block = tl.load(table + positions // BLOCK_SIZE, mask=wanted, other=0)
    return block * BLOCK_SIZE + positions % BLOCK_SIZE

"""It is enough to widen the finished slot. What has wrapped around by then stays so."""

CAUGHT_BY = "test_a_slot_itself_may_not_fit_into_32_bits"
MESSAGE = "before it becomes an int64"


@jit
def slots_of(table, positions, wanted, BLOCK_SIZE: tl.constexpr):
    block = tl.load(table + positions // BLOCK_SIZE, mask=wanted, other=0)
    return (block * BLOCK_SIZE + positions % BLOCK_SIZE).to(tl.int64)

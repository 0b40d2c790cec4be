"""Only the loads of keys and values need a mask. Behind a request's last block the table has entries of somebody else, and then none."""

CAUGHT_BY = "test_the_table_is_not_read_for_what_is_not_wanted"
MESSAGE = "`mask=wanted, other=0` in the load of the table"


@jit
def slots_of(table, positions, wanted, BLOCK_SIZE: tl.constexpr):
    block = tl.load(table + positions // BLOCK_SIZE)
    return block.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE

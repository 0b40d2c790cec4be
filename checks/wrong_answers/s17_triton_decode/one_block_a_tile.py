"""A tile lies in one block, so one look into the table is enough. Tiles are as large as the chip likes them, blocks as large as the pool likes them."""

CAUGHT_BY = "test_a_tile_spans_several_blocks"
MESSAGE = "entry position // BLOCK_SIZE"


@jit
def slots_of(table, positions, wanted, BLOCK_SIZE: tl.constexpr):
    first = tl.min(positions, axis=0)
    block = tl.load(table + first // BLOCK_SIZE + tl.zeros_like(positions), mask=wanted, other=0)
    return block.to(tl.int64) * BLOCK_SIZE + (positions - first)

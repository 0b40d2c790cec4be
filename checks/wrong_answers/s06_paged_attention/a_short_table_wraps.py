"""The table is trusted to be long enough: with a short one an IndexError comes up, or a modulo makes it start again."""

CAUGHT_BY = "test_a_table_that_ends_too_early_is_refused"
MESSAGE = "token 8 needs a third block"


def slot_mapping(blocks, start, n, block_size):
    return [blocks[p // block_size % len(blocks)] * block_size + p % block_size for p in range(start, start + n)]

"""The number of the entry is taken for the block that the entry names."""

CAUGHT_BY = "test_the_first_token_lies_at_the_start_of_the_first_block"
MESSAGE = "the entry's block, not its number"


def slot(blocks, position, block_size):
    index, offset = divmod(position, block_size)
    if not 0 <= index < len(blocks):
        raise BlockError(f"position {position} is outside the table")
    return index, offset

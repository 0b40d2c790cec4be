"""A request's blocks lie side by side in the pool, so that its first block says where everything is."""

CAUGHT_BY = "test_a_prompt_goes_where_its_blocks_lie"
MESSAGE = "look every block up"


def slot_mapping(blocks, start, n, block_size):
    if start + n > len(blocks) * block_size:
        raise BlockError(f"{start + n} tokens do not fit into {len(blocks)} blocks of {block_size}")
    return [blocks[0] * block_size + p for p in range(start, start + n)]

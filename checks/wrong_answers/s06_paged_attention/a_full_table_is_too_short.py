"""The last place of the last block stays empty: `>=` in place of `>`, and a request of exactly 16 tokens needs two blocks of 16."""

CAUGHT_BY = "test_a_table_that_ends_too_early_is_refused"
MESSAGE = "compare with >"


def slot_mapping(blocks, start, n, block_size):
    if start + n >= len(blocks) * block_size:
        raise BlockError(f"{start + n} tokens do not fit into {len(blocks)} blocks of {block_size}")
    return [blocks[p // block_size] * block_size + p % block_size for p in range(start, start + n)]

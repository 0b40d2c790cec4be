"""Only the tokens are counted. A copy moves a block, its empty places too."""

CAUGHT_BY = "test_a_part_filled_block_moves_whole"
MESSAGE = "blocks move, not tokens"


def swap_ms(model, tokens, link=PCIE4, block_size=16):
    one_way = tokens * model.kv_bytes / link.bytes_per_s + blocks_needed(tokens, block_size) * link.copy_s
    return 2 * one_way * 1e3

"""Rounding up is taken for floor plus one, so that a full block already holds an empty second one."""

CAUGHT_BY = "test_a_full_block_needs_no_second_one"
MESSAGE = "floor plus one is not rounding up"


def blocks_needed(num_tokens, block_size):
    return num_tokens // block_size + 1

"""The KV of a request is thought of as one piece: one copy each way. It lies in as many places as it has blocks."""

CAUGHT_BY = "test_each_block_costs_a_copy"
MESSAGE = "for each block in each direction"


def swap_ms(model, tokens, link=PCIE4, block_size=16):
    blocks = blocks_needed(tokens, block_size)
    return 2 * (blocks * block_size * model.kv_bytes / link.bytes_per_s + link.copy_s) * 1e3

"""A swap is priced when the victim leaves. It has to come back as well, over the same link."""

CAUGHT_BY = "test_out_and_back"
MESSAGE = "the KV crosses the link twice"


def swap_ms(model, tokens, link=PCIE4, block_size=16):
    blocks = blocks_needed(tokens, block_size)
    return (blocks * block_size * model.kv_bytes / link.bytes_per_s + blocks * link.copy_s) * 1e3

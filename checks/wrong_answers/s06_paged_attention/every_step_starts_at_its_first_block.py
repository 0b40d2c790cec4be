"""Slots are counted from the begin of the step: a decode's only token is token 0, and writes over the prompt's first."""

CAUGHT_BY = "test_a_decode_goes_behind_what_is_stored"
MESSAGE = "counts from the request's first token"


def slot_mapping(blocks, start, n, block_size):
    if start + n > len(blocks) * block_size:
        raise BlockError(f"{start + n} tokens do not fit into {len(blocks)} blocks of {block_size}")
    return [blocks[p // block_size] * block_size + p % block_size for p in range(n)]

"""A block is named by its own tokens alone, so that equal tokens behind different beginnings share KV that differs."""

CAUGHT_BY = "test_equal_tokens_behind_another_beginning_have_another_name"
MESSAGE = "put the parent's name into the hash"


def hash_chain(tokens, block_size, salt="", known=()):
    chain = list(known)
    for start in range(len(chain) * block_size, len(tokens) - block_size + 1, block_size):
        chain.append(block_hash(chain_start(salt), tokens[start : start + block_size]))
    return chain

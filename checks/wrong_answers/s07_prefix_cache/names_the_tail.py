"""The last block gets a name though it is not full, and the KV under that name changes with the next token."""

CAUGHT_BY = "test_one_name_for_each_full_block"
MESSAGE = "only full blocks have a name"


def hash_chain(tokens, block_size, salt="", known=()):
    chain = list(known)
    for start in range(len(chain) * block_size, len(tokens), block_size):
        parent = chain[-1] if chain else chain_start(salt)
        chain.append(block_hash(parent, tokens[start : start + block_size]))
    return chain

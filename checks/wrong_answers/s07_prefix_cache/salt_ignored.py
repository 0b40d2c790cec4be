"""The salt is accepted and not used, so that every tenant can find out what the others have asked."""

CAUGHT_BY = "test_another_salt_shares_no_block"
MESSAGE = "the salt goes into chain_start"


def hash_chain(tokens, block_size, salt="", known=()):
    chain = list(known)
    for start in range(len(chain) * block_size, len(tokens) - block_size + 1, block_size):
        parent = chain[-1] if chain else chain_start()
        chain.append(block_hash(parent, tokens[start : start + block_size]))
    return chain

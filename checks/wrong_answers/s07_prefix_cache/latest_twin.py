"""Of several equal blocks the one registered last is taken, which vLLM does not do: a replay differs in which blocks stay."""

CAUGHT_BY = "test_of_equal_blocks_the_first_registered"
MESSAGE = "6 was registered first"


class PrefixPool:
    def lookup(self, hashes, num_tokens):
        hit = []
        for name in hashes[: (num_tokens - 1) // self.block_size]:
            if name not in self.holders:
                break
            hit.append(next(reversed(self.holders[name])))
        return hit

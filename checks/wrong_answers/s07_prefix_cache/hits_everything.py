"""A prompt whose blocks are all cached counts as computed, so that no token is left to sample from."""

CAUGHT_BY = "test_a_full_hit_still_computes_one_token"
MESSAGE = "nothing to sample from"


class PrefixPool:
    def lookup(self, hashes, num_tokens):
        hit = []
        for name in hashes:
            if name not in self.holders:
                break
            hit.append(next(iter(self.holders[name])))
        return hit

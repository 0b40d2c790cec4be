"""Every cached block of a prompt counts, also behind a hole, where the tokens before it are not stored."""

CAUGHT_BY = "test_it_stops_at_the_first_hole"
MESSAGE = "Stop, don't skip"


class PrefixPool:
    def lookup(self, hashes, num_tokens):
        wanted = hashes[: (num_tokens - 1) // self.block_size]
        return [next(iter(self.holders[name])) for name in wanted if name in self.holders]

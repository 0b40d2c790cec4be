"""rewind takes any length, also one beyond what is stored: the slots in between hold nothing, or somebody else's past."""

CAUGHT_BY = "test_it_cannot_bring_tokens_back"
MESSAGE = "raise CacheOverrun"


class KVCache:
    def rewind(self, length):
        self.length = length

"""rewind(n) drops the last n tokens instead of keeping the first n."""

CAUGHT_BY = "test_to_all_and_to_nothing_are_both_possible"
MESSAGE = "keep the first"


class KVCache:
    def rewind(self, length):
        if not 0 <= length <= self.length:
            raise CacheOverrun(f"can't rewind to {length} tokens: the KV cache holds {self.length}")
        self.length -= length

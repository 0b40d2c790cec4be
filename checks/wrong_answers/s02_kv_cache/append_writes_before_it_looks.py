"""What fits is written, and the error comes after that: an overrun leaves half a token list behind."""

CAUGHT_BY = "test_an_overrun_is_refused_and_nothing_is_written"
MESSAGE = "before you write"


class KVCache:
    def append(self, layer, k, v):
        stop = self.length + len(k)
        room = self.capacity - self.length
        self.k[layer, self.length : stop] = k[:room]
        self.v[layer, self.length : stop] = v[:room]
        if stop > self.capacity:
            raise CacheOverrun(f"{stop} tokens do not fit into a KV cache of {self.capacity}")

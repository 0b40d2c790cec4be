"""A full cache is taken for an overrun: the last slot can never be used."""

CAUGHT_BY = "test_the_last_slot_may_be_used"
MESSAGE = "compare with >"


class KVCache:
    def append(self, layer, k, v):
        stop = self.length + len(k)
        if stop >= self.capacity:
            raise CacheOverrun(f"{stop} tokens do not fit into a KV cache of {self.capacity}")
        self.k[layer, self.length : stop] = k
        self.v[layer, self.length : stop] = v

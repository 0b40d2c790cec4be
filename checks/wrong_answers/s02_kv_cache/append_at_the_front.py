"""The new keys are written from place 0 on, over those of the prompt."""

CAUGHT_BY = "test_new_tokens_stand_behind_the_old_ones"
MESSAGE = "to the places length"


class KVCache:
    def append(self, layer, k, v):
        stop = self.length + len(k)
        if stop > self.capacity:
            raise CacheOverrun(f"{stop} tokens do not fit into a KV cache of {self.capacity}")
        self.k[layer, : len(k)] = k
        self.v[layer, : len(v)] = v

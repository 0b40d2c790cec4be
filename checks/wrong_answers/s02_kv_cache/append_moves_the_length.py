"""append moves `length` itself, so layer 1 stores the tokens of the pass behind those of layer 0."""

CAUGHT_BY = "test_every_layer_stores_the_same_tokens_at_the_same_places"
MESSAGE = "layer 1 stores the same tokens"


class KVCache:
    def append(self, layer, k, v):
        stop = self.length + len(k)
        if stop > self.capacity:
            raise CacheOverrun(f"{stop} tokens do not fit into a KV cache of {self.capacity}")
        self.k[layer, self.length : stop] = k
        self.v[layer, self.length : stop] = v
        self.length = stop

"""Only the weights and the new KV are counted; what is stored in the cache is taken to be on the chip already."""

CAUGHT_BY = "test_what_is_stored_is_read_for_each_request"
MESSAGE = "nobody shares the KV cache"


def traffic(model, step):
    return BYTES * model.weights + model.kv_bytes * sum(chunk.new for chunk in step)

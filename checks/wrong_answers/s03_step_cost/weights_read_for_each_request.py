"""Each request of a batch reads the weights for itself, as if requests ran one after the other."""

CAUGHT_BY = "test_the_whole_batch_shares_one_reading_of_the_weights"
MESSAGE = "once a step"


def traffic(model, step):
    kv_tokens = sum(chunk.stored + chunk.new for chunk in step)
    return BYTES * model.weights * len(step) + model.kv_bytes * kv_tokens

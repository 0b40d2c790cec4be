"""A prompt of a hundred tokens is thought to read the weights a hundred times."""

CAUGHT_BY = "test_a_prompt_reads_the_weights_once_too"
MESSAGE = "share one reading"


def traffic(model, step):
    tokens = sum(chunk.new for chunk in step)
    return BYTES * model.weights * tokens + model.kv_bytes * sum(chunk.stored + chunk.new for chunk in step)

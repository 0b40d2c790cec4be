"""A weight is counted as one operation: the addition of each multiply-add is forgotten."""

CAUGHT_BY = "test_a_weight_is_one_multiplication_and_one_addition"
MESSAGE = "2 * weights a token"


def flops(model, step):
    tokens = sum(chunk.new for chunk in step)
    pairs = sum(chunk.new * chunk.stored + chunk.new * (chunk.new + 1) // 2 for chunk in step)
    return model.weights * tokens + 4 * model.layers * model.heads * model.head_dim * pairs

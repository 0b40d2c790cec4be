"""The step is taken for one long sequence, in which each token attends to the tokens of all requests."""

CAUGHT_BY = "test_requests_share_weights_and_no_attention"
MESSAGE = "each chunk by itself"


def flops(model, step):
    new = sum(chunk.new for chunk in step)
    stored = sum(chunk.stored for chunk in step)
    pairs = new * stored + new * (new + 1) // 2
    return 2 * model.weights * new + 4 * model.layers * model.heads * model.head_dim * pairs

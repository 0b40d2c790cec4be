"""Every token of a prompt attends to the whole prompt, also to the tokens that come after it."""

CAUGHT_BY = "test_a_prompt_attends_to_the_half_of_a_square"
MESSAGE = "not 4 * 4"


def flops(model, step):
    tokens = sum(chunk.new for chunk in step)
    pairs = sum(chunk.new * (chunk.stored + chunk.new) for chunk in step)
    return 2 * model.weights * tokens + 4 * model.layers * model.heads * model.head_dim * pairs

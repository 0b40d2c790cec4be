"""The half square is divided with `/`, so the operations of a step come out as a float."""

CAUGHT_BY = "test_it_is_a_whole_number"
MESSAGE = "`/ 2` makes a float"


def flops(model, step):
    tokens = sum(chunk.new for chunk in step)
    pairs = sum(chunk.new * chunk.stored + chunk.new * (chunk.new + 1) / 2 for chunk in step)
    return 2 * model.weights * tokens + 4 * model.layers * model.heads * model.head_dim * pairs

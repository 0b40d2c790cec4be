"""The step that is to be doubled is priced without its KV."""

CAUGHT_BY = "test_the_one_has_its_context_too"
MESSAGE = "reads 5,000 stored tokens as well"


def twice(cost, context):
    batch, limit = 1, 2 * cost.step_ns(1, 0)
    while cost.step_ns(batch, batch * context) < limit:
        batch += 1
    return batch

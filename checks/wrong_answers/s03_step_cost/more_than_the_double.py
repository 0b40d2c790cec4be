"""Exactly the double is not accepted as twice."""

CAUGHT_BY = "test_it_is_the_first_batch_that_reaches_the_double"
MESSAGE = "*at least* twice"


def twice(cost, context):
    batch, limit = 1, 2 * cost.step_ns(1, context)
    while cost.step_ns(batch, batch * context) <= limit:
        batch += 1
    return batch

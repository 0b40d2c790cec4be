"""The batch is priced with the context of a single request: its KV is thought to be shared like the weights."""

CAUGHT_BY = "test_attention_counts_too"
MESSAGE = "n * context tokens"


def twice(cost, context):
    batch, limit = 1, 2 * cost.step_ns(1, context)
    while cost.step_ns(batch, context) < limit:
        batch += 1
    return batch

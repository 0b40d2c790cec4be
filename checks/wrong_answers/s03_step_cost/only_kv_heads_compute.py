"""Grouped queries are taken to save arithmetic as they save memory: only the KV heads are counted."""

CAUGHT_BY = "test_every_query_head_computes_also_where_heads_share_keys"
MESSAGE = "saves memory, not arithmetic"


def flops(model, step):
    tokens = sum(chunk.new for chunk in step)
    pairs = sum(chunk.new * chunk.stored + chunk.new * (chunk.new + 1) // 2 for chunk in step)
    return 2 * model.weights * tokens + 4 * model.layers * model.kv_heads * model.head_dim * pairs

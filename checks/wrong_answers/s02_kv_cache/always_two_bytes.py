"""Every number takes two bytes, whatever the cache is kept in: an 8-bit cache looks twice as large as it is."""

CAUGHT_BY = "test_other_numbers_take_other_bytes"
MESSAGE = "multiply by bytes_per_number"


def kv_bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_number=2):
    return 2 * num_layers * num_kv_heads * head_dim * 2

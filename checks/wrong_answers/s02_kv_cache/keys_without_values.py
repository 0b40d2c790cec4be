"""One array per layer is counted: the values are forgotten."""

CAUGHT_BY = "test_real_models"
MESSAGE = "a key and a value"


def kv_bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_number=2):
    return num_layers * num_kv_heads * head_dim * bytes_per_number

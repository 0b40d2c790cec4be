"""Bits divided by 8 with `/`: a number of bytes becomes a float."""

CAUGHT_BY = "test_real_models"
MESSAGE = "use //: a whole number"


def kv_bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_number=2):
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_number * 8 / 8

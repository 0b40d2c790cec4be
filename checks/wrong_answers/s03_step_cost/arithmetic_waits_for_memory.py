"""The two times are added, as if the chip stood still while the memory delivers."""

CAUGHT_BY = "test_below_the_ridge_the_memory_decides"
MESSAGE = "not a sum"


def roofline_ms(gpu, num_flops, num_bytes):
    return 1e3 * (num_flops / gpu.flops_per_s + num_bytes / gpu.bytes_per_s)

"""All tensors have torch's default for whole numbers, which the kernels' check refuses."""

CAUGHT_BY = "test_dtypes_are_what_the_kernels_take"
MESSAGE = "in 32"


def tensors_of(flat):
    width = max(map(len, flat.block_tables))
    rows = [[*blocks, *[0] * (width - len(blocks))] for blocks in flat.block_tables]
    long, short = ({"dtype": kind, "device": DEVICE} for kind in (torch.int64, torch.int64))
    return Tensors(
        *(torch.tensor(numbers, **long) for numbers in (flat.tokens, flat.positions, flat.slot_mapping)),
        *(torch.tensor(numbers, **short) for numbers in (flat.query_start_loc, flat.seq_lens, rows)),
    )

"""Short tables are filled up in place: the scheduler finds zeros among a request's blocks."""

CAUGHT_BY = "test_short_tables_are_filled_up"
MESSAGE = "the scheduler's own"


def tensors_of(flat):
    width = max(map(len, flat.block_tables))
    for table in flat.block_tables:
        table += [0] * (width - len(table))
    long, short = ({"dtype": kind, "device": DEVICE} for kind in (torch.int64, torch.int32))
    return Tensors(
        *(torch.tensor(numbers, **long) for numbers in (flat.tokens, flat.positions, flat.slot_mapping)),
        *(torch.tensor(numbers, **short) for numbers in (flat.query_start_loc, flat.seq_lens, flat.block_tables)),
    )

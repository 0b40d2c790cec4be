"""Short tables are filled up in front, as prompts are for a batched model: every position of a short request moves to another block."""

CAUGHT_BY = "test_short_tables_are_filled_up"
MESSAGE = "own blocks come first"


def tensors_of(flat):
    width = max(map(len, flat.block_tables))
    rows = [[*[0] * (width - len(blocks)), *blocks] for blocks in flat.block_tables]
    long, short = ({"dtype": kind, "device": DEVICE} for kind in (torch.int64, torch.int32))
    return Tensors(
        *(torch.tensor(numbers, **long) for numbers in (flat.tokens, flat.positions, flat.slot_mapping)),
        *(torch.tensor(numbers, **short) for numbers in (flat.query_start_loc, flat.seq_lens, rows)),
    )

"""`num_computed_tokens` is taken for the state before the step, but schedule() has moved it: the step computes what comes after."""

CAUGHT_BY = "test_the_tokens_stand_one_behind_the_other"
MESSAGE = "take the n tokens before it"


def flatten(batch, block_size):
    flat = FlatBatch()
    for request, n in batch.tokens.items():
        start = request.num_computed_tokens
        flat.tokens += [*request.prompt, *request.output][start : start + n]
        flat.positions += range(start, start + n)
        flat.slot_mapping += slot_mapping(request.blocks, start, n, block_size)
        flat.query_start_loc.append(len(flat.tokens))
        flat.seq_lens.append(start + n)
        flat.block_tables.append(request.blocks)
    return flat

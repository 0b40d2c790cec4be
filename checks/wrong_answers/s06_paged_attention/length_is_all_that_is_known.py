"""The length of a request is all it knows: in the middle of a prompt it reads slots that nobody has written yet."""

CAUGHT_BY = "test_the_lengths_count_what_is_stored_after_this_step"
MESSAGE = "count the tokens that this step stores"


def flatten(batch, block_size):
    flat = FlatBatch()
    for request, n in batch.tokens.items():
        stop = request.num_computed_tokens
        start = stop - n
        flat.tokens += [*request.prompt, *request.output][start:stop]
        flat.positions += range(start, stop)
        flat.slot_mapping += slot_mapping(request.blocks, start, n, block_size)
        flat.query_start_loc.append(len(flat.tokens))
        flat.seq_lens.append(request.num_tokens)
        flat.block_tables.append(request.blocks)
    return flat

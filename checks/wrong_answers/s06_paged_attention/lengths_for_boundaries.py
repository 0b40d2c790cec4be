"""`query_start_loc` is filled with lengths in place of sums: right for the first request only."""

CAUGHT_BY = "test_the_boundaries_begin_at_0_and_end_at_the_number_of_tokens"
MESSAGE = "sums, not lengths"


def flatten(batch, block_size):
    flat = FlatBatch()
    for request, n in batch.tokens.items():
        stop = request.num_computed_tokens
        start = stop - n
        flat.tokens += [*request.prompt, *request.output][start:stop]
        flat.positions += range(start, stop)
        flat.slot_mapping += slot_mapping(request.blocks, start, n, block_size)
        flat.query_start_loc.append(n)
        flat.seq_lens.append(stop)
        flat.block_tables.append(request.blocks)
    return flat

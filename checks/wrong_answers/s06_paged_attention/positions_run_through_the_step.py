"""Positions run through the flat list, as if the step were one long text: every request but the first is turned by wrong angles."""

CAUGHT_BY = "test_each_token_keeps_the_position_in_its_own_request"
MESSAGE = "place in its request: A's"


def flatten(batch, block_size):
    flat = FlatBatch()
    for request, n in batch.tokens.items():
        stop = request.num_computed_tokens
        start = stop - n
        flat.tokens += [*request.prompt, *request.output][start:stop]
        flat.positions += range(len(flat.positions), len(flat.positions) + n)
        flat.slot_mapping += slot_mapping(request.blocks, start, n, block_size)
        flat.query_start_loc.append(len(flat.tokens))
        flat.seq_lens.append(stop)
        flat.block_tables.append(request.blocks)
    return flat

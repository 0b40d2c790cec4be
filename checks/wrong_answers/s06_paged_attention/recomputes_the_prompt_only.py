"""Only the prompt is computed again after an eviction: the output was "done", but its keys and values are gone too."""

CAUGHT_BY = "test_an_evicted_request_computes_its_own_output_again"
MESSAGE = "take prompt + output"


def flatten(batch, block_size):
    flat = FlatBatch()
    for request, n in batch.tokens.items():
        stop = request.num_computed_tokens
        start = stop - n
        flat.tokens += list(request.prompt)[start:stop] if n > 1 else [*request.prompt, *request.output][start:stop]
        flat.positions += range(start, stop)
        flat.slot_mapping += slot_mapping(request.blocks, start, n, block_size)
        flat.query_start_loc.append(len(flat.tokens))
        flat.seq_lens.append(stop)
        flat.block_tables.append(request.blocks)
    return flat

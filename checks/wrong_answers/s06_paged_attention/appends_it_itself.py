"""The runner appends the new token to the request's output, and the engine does so again."""

CAUGHT_BY = "test_it_returns_the_token_and_appends_nothing"
MESSAGE = "the engine appends it"


class PagedRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        ends = [end - 1 for end in flat.query_start_loc[1:]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends) if r.num_computed_tokens == r.num_tokens}
        scores = self.model.forward(flat.tokens, flat.positions, partial(self.attention, flat), list(caught_up.values()))
        tokens = {id: [int(row.argmax())] for id, row in zip(caught_up, scores)}
        for request in batch.tokens:
            request.output += tokens.get(request.id, [])
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

"""A request makes one token, so execute returns the token and not a list of it."""

CAUGHT_BY = "test_each_gets_a_list_of_one_token"
MESSAGE = "a list for each"


class PagedRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        ends = [end - 1 for end in flat.query_start_loc[1:]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends) if r.num_computed_tokens == r.num_tokens}
        scores = self.model.forward(flat.tokens, flat.positions, partial(self.attention, flat), list(caught_up.values()))
        tokens = {id: int(row.argmax()) for id, row in zip(caught_up, scores)}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

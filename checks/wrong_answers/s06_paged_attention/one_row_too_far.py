"""`query_start_loc[i + 1]` is where the next request begins: one row behind the last token of this one."""

CAUGHT_BY = "test_the_scores_of_a_requests_last_token_make_its_next"
MESSAGE = "rows count from 0"


class PagedRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        ends = [end for end in flat.query_start_loc[1:]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends) if r.num_computed_tokens == r.num_tokens}
        scores = self.model.forward(flat.tokens, flat.positions, partial(self.attention, flat), list(caught_up.values()))
        tokens = {id: [int(row.argmax())] for id, row in zip(caught_up, scores)}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

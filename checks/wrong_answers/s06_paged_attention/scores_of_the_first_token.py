"""The scores are read at a request's first token of the step: right for a decode, which has only one, wrong for every prompt."""

CAUGHT_BY = "test_the_scores_of_a_requests_last_token_make_its_next"
MESSAGE = "query_start_loc[i + 1] - 1"


class PagedRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        caught_up = {
            r.id: first for r, first in zip(batch.tokens, flat.query_start_loc) if r.num_computed_tokens == r.num_tokens
        }
        scores = self.model.forward(flat.tokens, flat.positions, partial(self.attention, flat), list(caught_up.values()))
        tokens = {id: [int(row.argmax())] for id, row in zip(caught_up, scores)}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

"""A request whose prompt is computed samples: one that was evicted has outputs of its own, which it computes again first."""

CAUGHT_BY = "test_an_output_in_the_middle_samples_nothing"
MESSAGE = "compare with num_tokens, not with the prompt"


class PagedRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        ends = [end - 1 for end in flat.query_start_loc[1:]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends) if r.num_computed_tokens >= len(r.prompt)}
        scores = self.model.forward(flat.tokens, flat.positions, partial(self.attention, flat), list(caught_up.values()))
        tokens = {id: [int(row.argmax())] for id, row in zip(caught_up, scores)}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

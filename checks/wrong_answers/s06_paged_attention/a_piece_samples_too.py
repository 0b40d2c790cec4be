"""Every request of a step samples: one in the middle of its prompt gets a token between two words of the user's."""

CAUGHT_BY = "test_a_prompt_that_is_not_complete_samples_nothing"
MESSAGE = "what follows is known"


class PagedRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        rows = [end - 1 for end in flat.query_start_loc[1:]]
        scores = self.model.forward(flat.tokens, flat.positions, partial(self.attention, flat), rows)
        tokens = {request.id: [int(row.argmax())] for request, row in zip(batch.tokens, scores)}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

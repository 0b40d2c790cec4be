"""Each request is run by itself: the same tokens, and the weights are read once a request in place of once a step."""

CAUGHT_BY = "test_all_go_through_the_model_in_one_pass"
MESSAGE = "one forward for the whole batch"


class PagedRunner:
    def execute(self, batch):
        tokens, held = {}, 0
        for request, n in batch.tokens.items():
            one = type(batch)((request, n))
            flat = flatten(one, self.block_size)
            row = self.model.forward(flat.tokens, flat.positions, partial(self.attention, flat), [n - 1])[0]
            held += flat.seq_lens[0]
            if request.num_computed_tokens == request.num_tokens:
                tokens[request.id] = [int(row.argmax())]
        return tokens, self.cost.step_ns(sum(batch.tokens.values()), held)

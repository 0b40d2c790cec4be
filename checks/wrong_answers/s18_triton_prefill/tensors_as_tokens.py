"""The argmax stays a tensor, one of a single number for each request."""

CAUGHT_BY = "test_a_token_is_a_plain_int"
MESSAGE = ".tolist()"


class TorchRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        ends = [end - 1 for end in flat.query_start_loc[1:]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends) if r.num_computed_tokens == r.num_tokens}
        step = tensors_of(flat)
        scores = self.model.forward(step.tokens, step.positions, partial(self.attention, step), list(caught_up.values()))
        tokens = {id: [token] for id, token in zip(caught_up, scores.argmax(dim=-1))}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

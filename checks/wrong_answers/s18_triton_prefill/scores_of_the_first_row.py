"""A request's next token is read from the row of its first token of the step."""

CAUGHT_BY = "test_who_has_caught_up_samples_from_its_last_row"
MESSAGE = "not its first"


class TorchRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        ends = [begin for begin in flat.query_start_loc[:-1]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends) if r.num_computed_tokens == r.num_tokens}
        step = tensors_of(flat)
        scores = self.model.forward(step.tokens, step.positions, partial(self.attention, step), list(caught_up.values()))
        tokens = {id: [token] for id, token in zip(caught_up, scores.argmax(dim=-1).tolist())}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

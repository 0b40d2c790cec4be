"""Whoever has computed its prompt samples. A request that was evicted computes its own output again, and is sampled from in the middle of it: a second answer grows into the first."""

CAUGHT_BY = "test_who_computes_its_own_output_again_samples_nothing"
MESSAGE = "who has caught up is"


class TorchRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        ends = [end - 1 for end in flat.query_start_loc[1:]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends) if r.num_computed_tokens >= len(r.prompt)}
        step = tensors_of(flat)
        scores = self.model.forward(step.tokens, step.positions, partial(self.attention, step), list(caught_up.values()))
        tokens = {id: [token] for id, token in zip(caught_up, scores.argmax(dim=-1).tolist())}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

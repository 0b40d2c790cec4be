"""Every request of a step samples, a chunk in the middle of a prompt too."""

CAUGHT_BY = "test_who_has_caught_up_samples_from_its_last_row"
MESSAGE = "no token is sampled"


class TorchRunner:
    def execute(self, batch):
        flat = flatten(batch, self.block_size)
        ends = [end - 1 for end in flat.query_start_loc[1:]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends)}
        step = tensors_of(flat)
        scores = self.model.forward(step.tokens, step.positions, partial(self.attention, step), list(caught_up.values()))
        tokens = {id: [token] for id, token in zip(caught_up, scores.argmax(dim=-1).tolist())}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))

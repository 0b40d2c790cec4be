"""A step computes prompts or decodes, for these are two phases. Chunks without mixing leave the spike where it was."""

CAUGHT_BY = "test_a_step_mixes_decodes_and_a_chunk"
MESSAGE = "one pass over all that run"


class ChunkedScheduler:
    def schedule(self):
        self.batch = Batch()
        left = self.config.max_num_batched_tokens
        left = self.decode_pass(left, [request for request in self.running if not self.decodes(request)])
        left = self.admit_pass(left)
        if not self.batch.tokens:
            left = self.decode_pass(left, [request for request in self.running if self.decodes(request)])
            if self.batch.preempted:
                left = self.admit_pass(left)
        self.batch.budget_left = left
        return self.batch

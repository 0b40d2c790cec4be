"""Prompts first asks whether anybody was admitted. A prompt that runs already, in its second chunk, shares its step with the decodes."""

CAUGHT_BY = "test_prompts_first_leaves_the_rest_of_a_step_empty"
MESSAGE = "not who was admitted"


class ChunkedScheduler:
    def schedule(self):
        self.batch = Batch()
        left = self.config.max_num_batched_tokens
        if self.config.prefill_first:
            left = self.decode_pass(left, [request for request in self.running if not self.decodes(request)])
            left = self.admit_pass(left)
            if not self.batch.admitted and not self.batch.resumed:
                left = self.decode_pass(left, [request for request in self.running if self.decodes(request)])
                if self.batch.preempted:
                    left = self.admit_pass(left)
        else:
            left = self.admit_pass(self.decode_pass(left))
        self.batch.budget_left = left
        return self.batch

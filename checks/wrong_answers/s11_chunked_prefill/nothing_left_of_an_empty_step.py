"""A step that computes nothing is noted with nothing left. Whoever waits for blocks in it is said to wait for tokens."""

CAUGHT_BY = "test_a_step_that_computes_nothing_has_all_of_its_budget_left"
MESSAGE = "nothing was spent"


class ChunkedScheduler:
    def schedule(self):
        self.batch = Batch()
        left = self.config.max_num_batched_tokens
        if self.config.prefill_first:
            left = self.decode_pass(left, [request for request in self.running if not self.decodes(request)])
            left = self.admit_pass(left)
            if not self.batch.tokens:
                left = self.decode_pass(left, [request for request in self.running if self.decodes(request)])
                if self.batch.preempted:
                    left = self.admit_pass(left)
        else:
            left = self.admit_pass(self.decode_pass(left))
        self.batch.budget_left = left if self.batch.tokens else 0
        return self.batch

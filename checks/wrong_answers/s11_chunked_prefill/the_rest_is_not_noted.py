"""What is left of the budget is computed and dropped, so everybody behind the head is said to wait for tokens that are there."""

CAUGHT_BY = "test_what_is_left_of_the_budget_is_noted"
MESSAGE = "write it to `batch.budget_left`"


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
        return self.batch

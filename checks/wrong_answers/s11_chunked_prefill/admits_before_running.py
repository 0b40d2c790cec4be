"""Newcomers are let in first, and those who run share what is left. A long prompt takes a whole step, and everybody in mid-answer waits.
Healthy as long as a step has room for all."""

CAUGHT_BY = "test_running_ones_come_before_those_who_wait"
MESSAGE = "decode_pass first"
MYSTERY = "A"


class ChunkedScheduler:
    def schedule(self):
        self.batch = Batch()
        before = list(self.running)
        left = self.admit_pass(self.config.max_num_batched_tokens)
        self.batch.budget_left = self.decode_pass(left, before)
        return self.batch

"""Among those who run the prompts are served first, because they have the most to do. A decode gets its token when a chunk leaves one."""

CAUGHT_BY = "test_decodes_are_not_served_after_the_chunks"
MESSAGE = "walked in its own order"


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
            left = self.admit_pass(self.decode_pass(left, sorted(self.running, key=self.decodes)))
        self.batch.budget_left = left
        return self.batch

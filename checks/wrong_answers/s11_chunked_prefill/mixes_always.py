"""`prefill_first` is read nowhere: whoever compares the two kinds of step compares one of them with itself."""

CAUGHT_BY = "test_prompts_first_computes_no_decode_beside_a_prompt"
MESSAGE = "A and B wait"


class ChunkedScheduler:
    def schedule(self):
        self.batch = Batch()
        self.batch.budget_left = self.admit_pass(self.decode_pass(self.config.max_num_batched_tokens))
        return self.batch

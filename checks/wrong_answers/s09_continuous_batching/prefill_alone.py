"""A step with newcomers computes only their prompts, as prefill and decode are thought of as two kinds of step: all who run pause."""

CAUGHT_BY = "test_a_newcomer_joins_who_runs"
MESSAGE = "share the step"


class ContinuousBatcher:
    def schedule(self):
        batch = Batch()
        self.refill(batch)
        for request in batch.admitted or self.running:
            batch.tokens[request] = request.num_tokens - request.num_computed_tokens
            request.num_computed_tokens = request.num_tokens
        if self.waiting:
            batch.head = self.why_wait()
        return batch

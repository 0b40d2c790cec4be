"""The slots are refilled after the batch is made, so that each newcomer idles for one step."""

CAUGHT_BY = "test_a_newcomer_joins_who_runs"
MESSAGE = "refill first"


class ContinuousBatcher:
    def schedule(self):
        batch = Batch()
        for request in self.running:
            batch.tokens[request] = request.num_tokens - request.num_computed_tokens
            request.num_computed_tokens = request.num_tokens
        self.refill(batch)
        if self.waiting:
            batch.head = self.why_wait()
        return batch

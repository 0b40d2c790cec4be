"""A free slot is filled at once. That is continuous batching: a static batch is closed until its last member is done."""

CAUGHT_BY = "test_a_running_batch_admits_nobody"
MESSAGE = "the batch is closed"


class StaticBatcher:
    def schedule(self):
        batch = Batch()
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting.popleft()
            self.running.append(request)
            batch.admitted.append(request)
        for request in self.running:
            batch.tokens[request] = request.num_tokens - request.num_computed_tokens
            request.num_computed_tokens = request.num_tokens
        if self.waiting:
            batch.head = self.why_wait()
        return batch

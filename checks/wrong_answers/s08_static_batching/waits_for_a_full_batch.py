"""A batch starts only when all its slots can be filled, so the last few requests wait for ever."""

CAUGHT_BY = "test_a_part_filled_batch_runs_when_nobody_else_waits"
MESSAGE = "*or* nobody waits"


class StaticBatcher:
    def schedule(self):
        batch = Batch()
        if not self.running and len(self.waiting) >= self.max_num_seqs:
            for _ in range(self.max_num_seqs):
                request = self.waiting.popleft()
                self.running.append(request)
                batch.admitted.append(request)
        for request in self.running:
            batch.tokens[request] = request.num_tokens - request.num_computed_tokens
            request.num_computed_tokens = request.num_tokens
        if self.waiting:
            batch.head = self.why_wait()
        return batch

"""Each step computes all tokens again, as if no KV cache kept what is computed."""

CAUGHT_BY = "test_a_running_request_computes_the_one_token_it_has_just_sampled"
MESSAGE = "num_tokens - num_computed_tokens = 6 - 5"


class StaticBatcher:
    def schedule(self):
        batch = Batch()
        if not self.running:
            while self.waiting and len(self.running) < self.max_num_seqs:
                request = self.waiting.popleft()
                self.running.append(request)
                batch.admitted.append(request)
        for request in self.running:
            batch.tokens[request] = request.num_tokens
            request.num_computed_tokens = request.num_tokens
        if self.waiting:
            batch.head = self.why_wait()
        return batch

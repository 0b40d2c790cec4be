"""The threshold asks whether others run, and forgets those who wait. They are whom it was made for."""

CAUGHT_BY = "test_a_threshold_caps_a_chunk_while_others_wait"
MESSAGE = "R0 waits for what it leaves"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens - request.num_computed_tokens
        if gap > budget:
            gap = max(budget, 0) if self.config.chunked_prefill else 0
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < gap and self.config.chunked_prefill and len(self.running) > 1:
            return threshold
        return gap

"""A chunk is measured against the whole prompt, not against what is left of it, so a request computes tokens that it doesn't have."""

CAUGHT_BY = "test_the_next_chunk_takes_up_where_the_last_ended"
MESSAGE = "less what is computed"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens
        if gap > budget:
            gap = max(budget, 0) if self.config.chunked_prefill else 0
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < gap and self.config.chunked_prefill and len(self.running) + len(self.waiting) > 1:
            return threshold
        return gap

"""The threshold is applied first, and without chunking what it leaves is too little to be whole: a prompt above it never runs."""

CAUGHT_BY = "test_without_chunking_the_threshold_is_ignored"
MESSAGE = "the threshold is ignored"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens - request.num_computed_tokens
        n = min(gap, max(budget, 0))
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < n and len(self.running) + len(self.waiting) > 1:
            n = threshold
        if not self.config.chunked_prefill and n < gap:
            return 0
        return n

"""The threshold is for long prompts, and who has begun to answer has no prompt any more. After an eviction it computes all of it again at once."""

CAUGHT_BY = "test_a_threshold_caps_a_return_too"
MESSAGE = "the threshold asks for the gap alone"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens - request.num_computed_tokens
        if gap > budget:
            gap = max(budget, 0) if self.config.chunked_prefill else 0
        threshold = self.config.long_prefill_token_threshold
        others = len(self.running) + len(self.waiting) > 1
        if 0 < threshold < gap and not request.output and self.config.chunked_prefill and others:
            return threshold
        return gap

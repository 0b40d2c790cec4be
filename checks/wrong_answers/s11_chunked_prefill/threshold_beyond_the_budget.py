"""A long prompt gets chunks of the threshold, whatever is left of the step. The step grows past its budget, and with it everybody's gap."""

CAUGHT_BY = "test_a_threshold_is_no_promise"
MESSAGE = "the *smallest* of the three"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens - request.num_computed_tokens
        threshold = self.config.long_prefill_token_threshold
        others = len(self.running) + len(self.waiting) > 1
        if 0 < threshold < gap and self.config.chunked_prefill and others and budget > 0:
            return threshold
        if gap > budget:
            gap = max(budget, 0) if self.config.chunked_prefill else 0
        return gap

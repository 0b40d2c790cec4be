"""min() keeps a chunk within the budget, so it is never too large. It can be too small: a budget overdrawn by decodes makes it negative, and a test for 0 lets that pass."""

CAUGHT_BY = "test_a_spent_budget_gives_nothing"
MESSAGE = "never below 0"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens - request.num_computed_tokens
        if not self.config.chunked_prefill:
            return gap if gap <= budget else 0
        chunk = min(gap, budget)
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < chunk and len(self.running) + len(self.waiting) > 1:
            return threshold
        return chunk

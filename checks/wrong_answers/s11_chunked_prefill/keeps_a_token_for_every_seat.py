"""A chunk leaves a token for each seat, so that the decodes are safe. They have been served already, and the step runs part-empty.
Healthy as long as the budget is large beside the seats."""

CAUGHT_BY = "test_a_prompt_that_does_not_fit_is_cut"
MESSAGE = "it takes what is left"
MYSTERY = "B"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens - request.num_computed_tokens
        if gap > 1 and self.config.chunked_prefill:
            budget = min(budget, max(budget - self.config.max_num_seqs, 1))
        if gap > budget:
            gap = max(budget, 0) if self.config.chunked_prefill else 0
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < gap and self.config.chunked_prefill and len(self.running) + len(self.waiting) > 1:
            return threshold
        return gap

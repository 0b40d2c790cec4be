"""With chunking switched off prompts are cut all the same, so whoever switched it off gets the schedule that they wanted to avoid."""

CAUGHT_BY = "test_without_chunking_it_is_all_or_nothing"
MESSAGE = "is off: the whole gap, or 0"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = min(request.num_tokens - request.num_computed_tokens, max(budget, 0))
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < gap and len(self.running) + len(self.waiting) > 1:
            return threshold
        return gap

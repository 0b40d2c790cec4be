"""The gate asks whether the prompt fits: that is what a request comes with. But one that was evicted comes with its outputs too."""

CAUGHT_BY = "test_the_whole_of_it_is_prompt_and_outputs"
MESSAGE = "their KV was lost with the prompt's"


class UnifiedScheduler:
    def fit(self, request, hit, tokens):
        if self.config.admission == "full_prompt":
            tokens = max(tokens, len(request.prompt))
        needed = blocks_needed(tokens, self.config.block_size) - len(hit) + self.pool.idle(hit)
        kept = self.watermark_blocks if self.running else 0
        return needed, self.pool.num_free - kept

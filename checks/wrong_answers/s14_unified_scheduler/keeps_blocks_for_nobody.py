"""R5: the watermark holds always. What needs the whole pool is accepted at the door and never joins."""

CAUGHT_BY = "test_what_fits_only_the_whole_pool_joins_an_empty_machine"
MESSAGE = "kept for nobody"


class UnifiedScheduler:
    def fit(self, request, hit, tokens: int) -> tuple[int, int]:
        if self.config.admission == "full_prompt":
            tokens = request.num_tokens
        needed = blocks_needed(tokens, self.config.block_size) - len(hit) + self.pool.idle(hit)
        kept = self.watermark_blocks
        return needed, self.pool.num_free - kept

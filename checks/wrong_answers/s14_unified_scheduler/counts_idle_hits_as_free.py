"""R5: a hit costs nothing, whoever owns it. An idle one stands in the free list, and is handed out twice."""

CAUGHT_BY = "test_an_idle_hit_is_counted_as_needed"
MESSAGE = "an idle hit leaves the free list"


class UnifiedScheduler:
    def fit(self, request, hit, tokens: int) -> tuple[int, int]:
        if self.config.admission == "full_prompt":
            tokens = request.num_tokens
        needed = blocks_needed(tokens, self.config.block_size) - len(hit)
        kept = self.watermark_blocks if self.running else 0
        return needed, self.pool.num_free - kept

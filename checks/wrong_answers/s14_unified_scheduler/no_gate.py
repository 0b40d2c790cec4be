"""R5: room for the first chunk is enough, also where the whole prompt was asked for."""

CAUGHT_BY = "test_R5_with_the_gate_the_whole_prompt_must_fit"
MESSAGE = "it waits"


class UnifiedScheduler:
    def fit(self, request, hit, tokens: int) -> tuple[int, int]:
        needed = blocks_needed(tokens, self.config.block_size) - len(hit) + self.pool.idle(hit)
        kept = self.watermark_blocks if self.running else 0
        return needed, self.pool.num_free - kept

"""The gate asks for the watermark as well. `why_wait` has taken it off the free blocks already, so it is kept back twice."""

CAUGHT_BY = "test_the_watermark_is_not_the_gates"
MESSAGE = "kept back twice"


class ChunkedScheduler:
    def gate(self, request, chunk):
        whole = self.config.admission == "full_prompt"
        n = request.num_tokens - request.num_computed_tokens if whole else chunk
        return self.pool.missing(request, n) + self.config.watermark_blocks

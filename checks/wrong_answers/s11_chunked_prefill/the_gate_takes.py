"""The gate takes the blocks that it was asked about. `explain` asks for everybody who waits, and so the pool empties by being looked at."""

CAUGHT_BY = "test_full_prompt_asks_for_all_that_is_known"
MESSAGE = "the gate only asks"


class ChunkedScheduler:
    def gate(self, request, chunk):
        whole = self.config.admission == "full_prompt"
        n = request.num_tokens - request.num_computed_tokens if whole else chunk
        missing = self.pool.missing(request, n)
        self.pool.grow(request, n)
        return missing

"""Room for the first chunk is always enough, whatever `admission` says. Long prompts are let in that can't go on, and evict each other."""

CAUGHT_BY = "test_full_prompt_asks_for_all_that_is_known"
MESSAGE = "whatever the first chunk is"


class ChunkedScheduler:
    def gate(self, request, chunk):
        return self.pool.missing(request, chunk)

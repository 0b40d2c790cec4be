"""A request takes the blocks of all its chunks with the first. They lie empty while others wait for them.
Healthy as long as memory is ample."""

CAUGHT_BY = "test_a_chunk_takes_blocks_for_itself_only"
MESSAGE = "what is reserved early"
MYSTERY = "C"


class ChunkedScheduler:
    def compute(self, request, n):
        whole = len(request.prompt) + request.max_tokens - 1 - request.num_computed_tokens
        if self.pool.missing(request, whole) <= self.pool.num_free:
            self.pool.grow(request, whole)
        return Scheduler.compute(self, request, n)

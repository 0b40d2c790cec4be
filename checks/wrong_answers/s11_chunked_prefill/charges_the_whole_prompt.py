"""A chunk is charged to the budget with all that its request is behind by. With a threshold the others find no token beside a long prompt."""

CAUGHT_BY = "test_a_chunk_costs_what_it_computes"
MESSAGE = "a chunk of n takes n tokens"


class ChunkedScheduler:
    def compute(self, request, n):
        behind = request.num_tokens - request.num_computed_tokens
        Scheduler.compute(self, request, n)
        return behind

"""A chunk is charged to the budget with all that its request is behind by. Nobody finds a token beside a long prompt.
Healthy as long as no prompt is cut."""

CAUGHT_BY = "test_a_chunk_costs_what_it_computes"
MESSAGE = "a chunk of n takes n tokens"
MYSTERY = "B"


class ChunkedScheduler:
    def compute(self, request, n):
        behind = request.num_tokens - request.num_computed_tokens
        Scheduler.compute(self, request, n)
        return behind

"""A victim forgets its block table without giving the blocks back, so that each eviction makes the pool smaller.
Healthy until the pool is full for the first time."""

CAUGHT_BY = "test_its_blocks_come_back"
MESSAGE = "gives its blocks to the pool"
MYSTERY = "C"


class Scheduler:
    def preempt(self, request):
        given_back = self.batch.tokens.pop(request, 0)
        request.num_computed_tokens -= given_back
        self.running.remove(request)
        request.recomputed_tokens += request.num_computed_tokens
        self.batch.thrown_away += request.num_computed_tokens
        request.blocks, request.num_computed_tokens = [], 0
        request.num_preemptions += 1
        self.batch.preempted.append(request)
        self.waiting.push(request)
        return given_back

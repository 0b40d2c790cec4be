"""The blocks of a victim go back, and num_computed_tokens stays: it resumes as if its KV were still there. Faster than physics, and every token after that is wrong.
Healthy until the pool is full for the first time."""

CAUGHT_BY = "test_its_kv_is_gone_so_nothing_counts_as_computed"
MESSAGE = "faster than physics"
MYSTERY = "B"


class Scheduler:
    def preempt(self, request):
        given_back = self.batch.tokens.pop(request, 0)
        request.num_computed_tokens -= given_back
        self.running.remove(request)
        self.pool.free(request.blocks)
        request.blocks = []
        request.num_preemptions += 1
        self.batch.preempted.append(request)
        self.waiting.push(request)
        return given_back

"""R4: blocks are free, so somebody joins, though this very step evicted for want of them."""

CAUGHT_BY = "test_nobody_joins_in_a_step_that_evicts"
MESSAGE = "after an eviction nobody is admitted"


class UnifiedScheduler:
    def admission_pass(self, budget: int) -> int:
        preempted, self.batch.preempted = self.batch.preempted, []
        while self.waiting:
            request = self.waiting.head()
            self.batch.head = self.why_wait(request, budget)
            if self.batch.head is not None:
                break
            hit = self.look_up(request)
            cached = len(hit) * self.config.block_size
            n = self.step_size(request, cached, budget)
            self.waiting.pop()
            self.running.append(request)
            (self.batch.resumed if request.num_preemptions else self.batch.admitted).append(request)
            self.batch.hits[request] = request.num_computed_tokens = cached
            self.compute(request, n, hit)
            budget -= n
        self.batch.preempted = preempted
        return budget

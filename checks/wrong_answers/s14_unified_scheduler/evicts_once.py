"""R2: one eviction is enough for a decode, so an `if` in place of the `while`. A chunk may need the blocks of several."""

CAUGHT_BY = "test_one_eviction_may_not_be_enough"
MESSAGE = "`while`, not `if`"


class UnifiedScheduler:
    def running_pass(self, budget: int) -> int:
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            n = self.step_size(request, request.num_computed_tokens, budget)
            victim = None
            if n and self.pool.missing(request, n) > self.pool.num_free:
                victim = self.pick_victim()
                at -= self.running.index(victim) < at
                budget += self.preempt(victim)
            if victim is not request:
                if n:
                    self.compute(request, n)
                    budget -= n
                at += 1
        return budget

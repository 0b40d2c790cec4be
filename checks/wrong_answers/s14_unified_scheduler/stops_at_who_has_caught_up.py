"""R1: takes n = 0 for the end of the budget and leaves the pass; those behind get nothing in this step."""

CAUGHT_BY = "test_one_that_has_caught_up_is_skipped"
MESSAGE = "n = 0 skips it"


class UnifiedScheduler:
    def running_pass(self, budget: int) -> int:
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            n = self.step_size(request, request.num_computed_tokens, budget)
            if n == 0:
                break
            victim = None
            while n and victim is not request and self.pool.missing(request, n) > self.pool.num_free:
                victim = self.pick_victim()
                at -= self.running.index(victim) < at
                budget += self.preempt(victim)
            if victim is not request:
                if n:
                    self.compute(request, n)
                    budget -= n
                at += 1
        return budget

"""R2 as before vLLM 0.33: who evicts itself by priority ends the pass, though all behind it are more important."""

CAUGHT_BY = "test_after_evicting_itself_by_priority_the_pass_goes_on"
MESSAGE = "go on"


class UnifiedScheduler:
    def running_pass(self, budget: int) -> int:
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            n = self.step_size(request, request.num_computed_tokens, budget)
            victim = None
            while n and victim is not request and self.pool.missing(request, n) > self.pool.num_free:
                victim = self.pick_victim()
                at -= self.running.index(victim) < at
                budget += self.preempt(victim)
            if victim is request:
                break
            if n:
                self.compute(request, n)
                budget -= n
            at += 1
        return budget

"""R2: evicts somebody who was served in this step, and the budget never hears of it: the others get less than there is."""

CAUGHT_BY = "test_its_tokens_go_back_to_the_budget"
MESSAGE = "add what `preempt` returns to the budget"


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
                self.preempt(victim)
            if victim is not request:
                if n:
                    self.compute(request, n)
                    budget -= n
                at += 1
        return budget

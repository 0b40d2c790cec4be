"""R2: a victim that stands before the cursor leaves the list, all behind it move up, and the cursor stays: somebody is
skipped."""

CAUGHT_BY = "test_after_a_victim_before_the_cursor_nobody_is_skipped"
MESSAGE = "C is stepped over"


class UnifiedScheduler:
    def running_pass(self, budget: int) -> int:
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            n = self.step_size(request, request.num_computed_tokens, budget)
            victim = None
            while n and victim is not request and self.pool.missing(request, n) > self.pool.num_free:
                victim = self.pick_victim()
                budget += self.preempt(victim)
            if victim is not request:
                if n:
                    self.compute(request, n)
                    budget -= n
                at += 1
        return budget

"""An eviction gives tokens back, so whoever caused it may take more than it had asked for. But n was settled before blocks were looked for."""

CAUGHT_BY = "test_who_needed_the_blocks_gets_no_more_than_it_asked_for"
MESSAGE = "n is asked for once"


class UnifiedScheduler:
    def running_pass(self, budget):
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            n = self.step_size(request, request.num_computed_tokens, budget)
            victim = None
            while n and victim is not request and self.pool.missing(request, n) > self.pool.num_free:
                victim = self.pick_victim()
                at -= self.running.index(victim) < at
                budget += self.preempt(victim)
                if victim is not request:
                    n = self.step_size(request, request.num_computed_tokens, budget)
            if victim is not request:
                if n:
                    self.compute(request, n)
                    budget -= n
                at += 1
        return budget

"""A swapped request that can't return is passed over like any other, and its blocks go to newcomers."""

CAUGHT_BY = "test_nobody_passes_over_a_swapped_request"
MESSAGE = "swapped out goes before"


class FairScheduler:
    def admit_pass(self, budget):
        for request in self.in_turn():
            wait = self.why_wait(request, budget)
            if wait is None:
                budget = self.join(request, budget)
                continue
            if wait.rule == "seats" and self.config.preempt_for_priority:
                victim = self.seat_for(request, budget)
                if victim is not None:
                    budget = self.join(request, budget + self.preempt(victim))
                    self.batch.head = self.batch.head or self.why_wait(victim, budget)
                    break
            self.batch.head = self.batch.head or wait
            if not (self.config.skip_blocked and wait.rule == "blocks"):
                break
        return budget

"""Skipping is for every reason. Who lacks tokens would get them in the next step, and is passed over by a smaller one each
time."""

CAUGHT_BY = "test_no_other_reason_lets_anybody_pass"
MESSAGE = "lacks tokens, not blocks"


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
            if not (self.config.skip_blocked):
                break
        return budget

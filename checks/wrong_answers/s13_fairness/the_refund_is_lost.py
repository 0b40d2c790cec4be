"""What `preempt` gives back is not added to the budget: the step is shorter by the tokens that nobody computes."""

CAUGHT_BY = "test_the_victims_token_returns_to_the_budget"
MESSAGE = "before it joins"


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
                    self.preempt(victim)
                    budget = self.join(request, budget)
                    self.batch.head = self.batch.head or self.why_wait(victim, budget)
                    break
            self.batch.head = self.batch.head or wait
            if not (self.config.skip_blocked and wait.rule == "blocks" and request not in self.cpu_tables):
                break
        return budget

"""A victim is the news of the step, so its reason is noted last. But the head was passed over before it, and still waits."""

CAUGHT_BY = "test_a_victims_reason_does_not_replace_it"
MESSAGE = "only if there is none before it"


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
                    self.batch.head = self.why_wait(victim, budget)
                    break
            self.batch.head = self.batch.head or wait
            if not (self.config.skip_blocked and wait.rule == "blocks" and request not in self.cpu_tables):
                break
        return budget

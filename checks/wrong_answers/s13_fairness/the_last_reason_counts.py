"""Whoever is passed over last says why the queue waits. But the first one has waited longest, and the report is about the head."""

CAUGHT_BY = "test_the_first_reason_of_the_pass_is_kept"
MESSAGE = "that of the head"


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
            self.batch.head = wait
            if not (self.config.skip_blocked and wait.rule == "blocks" and request not in self.cpu_tables):
                break
        return budget

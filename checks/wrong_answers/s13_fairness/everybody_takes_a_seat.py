"""After one seat has been taken the pass goes on, and the next in line takes one too."""

CAUGHT_BY = "test_exactly_one_takes_a_seat"
MESSAGE = "the pass stops"


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
                    self.batch.preempted.remove(victim)
                    continue
            self.batch.head = self.batch.head or wait
            if not (self.config.skip_blocked and wait.rule == "blocks" and request not in self.cpu_tables):
                break
        return budget

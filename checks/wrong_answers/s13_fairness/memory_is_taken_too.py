"""Whatever an urgent request lacks, a seat or blocks, it takes from somebody less urgent."""

CAUGHT_BY = "test_only_seats_are_taken"
MESSAGE = "the decode pass's business"


class FairScheduler:
    def admit_pass(self, budget):
        for request in self.in_turn():
            wait = self.why_wait(request, budget)
            if wait is None:
                budget = self.join(request, budget)
                continue
            if self.config.preempt_for_priority:
                victim = self.seat_for(request, budget)
                if victim is not None:
                    budget = self.join(request, budget + self.preempt(victim))
                    self.batch.head = self.batch.head or self.why_wait(victim, budget)
                    break
            self.batch.head = self.batch.head or wait
            if not (self.config.skip_blocked and wait.rule == "blocks" and request not in self.cpu_tables):
                break
        return budget

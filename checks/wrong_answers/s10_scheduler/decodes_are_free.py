"""Decodes are not charged to the budget: a step with many of them is longer than the budget allows, and everybody's gap grows."""

CAUGHT_BY = "test_what_they_compute_is_taken_off_the_budget"
MESSAGE = "decodes are not charged"


class Scheduler:
    def decode_pass(self, budget):
        preempted = self.batch.preempted
        for request in tuple(self.running):
            if request in preempted:
                continue
            n = self.chunk_size(request, budget)
            if n == 0:
                break
            while self.pool.missing(request, n) > self.pool.num_free and request not in preempted:
                budget += self.preempt(self.pick_victim())
            if request not in preempted:
                self.compute(request, n)
        return budget

"""The tokens that a victim gives back are dropped, so that a step with an eviction is smaller than it could be."""

CAUGHT_BY = "test_a_victim_that_was_served_before_pays_back"
MESSAGE = "the budget grows by what"


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
                self.preempt(self.pick_victim())
            if request not in preempted:
                budget -= self.compute(request, n)
        return budget

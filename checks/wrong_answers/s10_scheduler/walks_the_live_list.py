"""The pass walks over `running` itself. Taking out somebody who stands before the cursor makes the loop step over the next."""

CAUGHT_BY = "test_evicting_somebody_who_was_served_already_skips_nobody"
MESSAGE = "walk over a snapshot"


class Scheduler:
    def decode_pass(self, budget):
        preempted = self.batch.preempted
        for request in self.running:
            if request in preempted:
                continue
            n = self.chunk_size(request, budget)
            if n == 0:
                break
            while self.pool.missing(request, n) > self.pool.num_free and request not in preempted:
                budget += self.preempt(self.pick_victim())
            if request not in preempted:
                budget -= self.compute(request, n)
        return budget

"""One eviction is thought to be always enough: `if` for `while`. It is, as long as every step of a request adds one token."""

CAUGHT_BY = "test_one_eviction_may_not_be_enough"
MESSAGE = "`while`, not `if`"


class Scheduler:
    def decode_pass(self, budget):
        preempted = self.batch.preempted
        for request in tuple(self.running):
            if request in preempted:
                continue
            n = self.chunk_size(request, budget)
            if n == 0:
                break
            if self.pool.missing(request, n) > self.pool.num_free and request not in preempted:
                budget += self.preempt(self.pick_victim())
            if request not in preempted:
                budget -= self.compute(request, n)
        return budget

"""A request that evicted itself is computed and charged all the same."""

CAUGHT_BY = "test_a_request_that_evicts_itself_computes_nothing"
MESSAGE = "B itself is the victim"


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
            budget -= n
        return budget

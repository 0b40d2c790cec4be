"""Whoever had to evict itself ends the pass, as if nobody after it could be served. vLLM did so for priorities before 0.33."""

CAUGHT_BY = "test_after_it_has_evicted_itself_the_pass_goes_on"
MESSAGE = "go on with the next"


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
                budget -= self.compute(request, n)
            else:
                break
        return budget

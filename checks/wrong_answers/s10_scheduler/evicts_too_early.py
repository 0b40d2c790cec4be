"""A request that needs exactly the free blocks evicts somebody all the same: `>=` for `>`. The last block is never used, and a full pool evicts in every step."""

CAUGHT_BY = "test_the_last_free_block_is_used_before_anybody_is_evicted"
MESSAGE = "an exact fit is enough"


class Scheduler:
    def decode_pass(self, budget):
        preempted = self.batch.preempted
        for request in tuple(self.running):
            if request in preempted:
                continue
            n = self.chunk_size(request, budget)
            if n == 0:
                break
            while self.pool.missing(request, n) >= self.pool.num_free and request not in preempted:
                budget += self.preempt(self.pick_victim())
            if request not in preempted:
                budget -= self.compute(request, n)
        return budget

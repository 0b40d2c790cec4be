"""A swapped request only needs blocks, so only blocks are asked for: it returns in the step that evicted somebody else for lack of them."""

CAUGHT_BY = "test_a_step_that_evicts_brings_nobody_back"
MESSAGE = "ask why_wait"


class SwappingScheduler:
    def swap_in_pass(self, budget):
        while self.waiting and self.waiting.head() in self.cpu_tables:
            request = self.waiting.head()
            if not budget or self.pool.missing(request, 1) > self.pool.num_free:
                break
            budget = self.join(request, budget)
        return budget

"""KV that comes back needs blocks, not tokens: the budget is no reason to leave it on the CPU. It takes blocks and a seat, and computes nothing."""

CAUGHT_BY = "test_whatever_is_short_ends_the_pass"
MESSAGE = "any reason of why_wait"


class SwappingScheduler:
    def swap_in_pass(self, budget):
        while self.waiting and self.waiting.head() in self.cpu_tables:
            request = self.waiting.head()
            self.batch.head = self.why_wait(request, budget)
            if self.batch.head is not None and self.batch.head.rule != "budget":
                break
            budget = self.join(request, budget)
        return budget

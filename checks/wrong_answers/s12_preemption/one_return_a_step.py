"""One swapped request returns a step, as if the link could carry one. The others wait, and all newcomers behind them."""

CAUGHT_BY = "test_they_return_and_compute_one_token"
MESSAGE = "each is behind by the one token"


class SwappingScheduler:
    def swap_in_pass(self, budget):
        if self.waiting and self.waiting.head() in self.cpu_tables:
            request = self.waiting.head()
            self.batch.head = self.why_wait(request, budget)
            if self.batch.head is None:
                budget = self.join(request, budget)
        return budget

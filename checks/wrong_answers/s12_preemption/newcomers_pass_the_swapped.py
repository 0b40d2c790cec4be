"""Whoever fits may join, and a small newcomer fits where a swapped request does not: it takes the blocks that the other waits for, again and again."""

CAUGHT_BY = "test_a_newcomer_waits_while_somebody_is_swapped_out"
MESSAGE = "Nobody joins while one of them can't return"
MYSTERY = "C"


class SwappingScheduler:
    def admit_pass(self, budget):
        budget = self.swap_in_pass(budget)
        for request in tuple(self.waiting):
            if request not in self.cpu_tables:
                wait = self.why_wait(request, budget)
                self.batch.head = self.batch.head or wait
                if wait is not None:
                    break
                budget = self.join(request, budget)
        return budget

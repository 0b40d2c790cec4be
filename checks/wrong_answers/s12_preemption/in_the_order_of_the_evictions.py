"""The swapped requests return in the order in which they were evicted, the order of cpu_tables. The queue has another: the last evicted first."""

CAUGHT_BY = "test_they_are_listed_as_swapped_in"
MESSAGE = "the head of `waiting` each time"


class SwappingScheduler:
    def swap_in_pass(self, budget):
        for request in tuple(self.cpu_tables):
            self.batch.head = self.why_wait(request, budget)
            if self.batch.head is not None:
                break
            budget = self.join(request, budget)
        return budget

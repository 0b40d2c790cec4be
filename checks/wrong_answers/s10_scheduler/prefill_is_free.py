"""An admission costs nothing of the budget, so that everybody who waits joins in one step."""

CAUGHT_BY = "test_the_head_of_the_queue_joins"
MESSAGE = "a prompt is charged to the budget"


class Scheduler:
    def admit_pass(self, budget):
        while self.waiting:
            request = self.waiting.head()
            self.batch.head = self.why_wait(request, budget)
            if self.batch.head is not None:
                break
            self.waiting.pop()
            self.running.append(request)
            (self.batch.resumed if request.num_preemptions else self.batch.admitted).append(request)
            self._restore(request)
            self.compute(request, self.chunk_size(request, budget))
        return budget

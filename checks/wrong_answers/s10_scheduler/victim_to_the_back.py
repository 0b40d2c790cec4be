"""A victim queues up again behind everyone who waits. The median improves, and one user in the middle of an answer waits the longest.
Healthy until the pool is full for the first time."""

CAUGHT_BY = "test_a_victim_goes_to_the_front"
MESSAGE = "With a new order it goes to the back"
MYSTERY = "A"


class Scheduler:
    def preempt(self, request):
        given_back = self.batch.tokens.pop(request, 0)
        request.num_computed_tokens -= given_back
        self.running.remove(request)
        self._park(request)
        request.num_preemptions += 1
        self.batch.preempted.append(request)
        self._added += 1
        request.order = self._added
        self.waiting.push(request)
        return given_back

"""A victim that was scheduled already in this step keeps its place in the batch, and its tokens stay spent."""

CAUGHT_BY = "test_a_victim_that_was_scheduled_already_gives_its_tokens_back"
MESSAGE = "the refund is forgotten"


class Scheduler:
    def preempt(self, request):
        self.running.remove(request)
        self._park(request)
        request.num_preemptions += 1
        self.batch.preempted.append(request)
        self.waiting.push(request)
        return 0

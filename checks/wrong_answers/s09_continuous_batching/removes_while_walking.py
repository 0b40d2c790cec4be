"""The list shrinks while it is walked over, so that the neighbour of a finished request is skipped and stays."""

CAUGHT_BY = "test_two_neighbours_that_finish_together_both_leave"
MESSAGE = "skips the neighbour"


class ContinuousBatcher:
    def retire(self, finished):
        for request in self.running:
            if request.finish_reason is not None:
                self.running.remove(request)
        for request in finished:
            del self._live[request.id]

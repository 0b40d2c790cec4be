"""The victim's tokens of this step go back to the budget, but still count as stored and thrown away."""

CAUGHT_BY = "test_the_victims_token_was_never_stored"
MESSAGE = "nothing of it is lost"


class FairScheduler:
    def preempt(self, request):
        given_back = self.batch.tokens.pop(request, 0)
        self.running.remove(request)
        self._park(request)
        request.num_preemptions += 1
        self.batch.preempted.append(request)
        self.waiting.push(request)
        return given_back

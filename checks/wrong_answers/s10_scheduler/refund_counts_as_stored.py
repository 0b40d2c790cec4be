"""The tokens that a victim gives back are still counted as stored and thrown away."""

CAUGHT_BY = "test_tokens_that_were_given_back_were_never_stored"
MESSAGE = "only 5 were ever stored"


class Scheduler:
    def preempt(self, request):
        given_back = self.batch.tokens.pop(request, 0)
        self.running.remove(request)
        self._park(request)
        request.num_preemptions += 1
        self.batch.preempted.append(request)
        self.waiting.push(request)
        return given_back

"""A victim starts all over: its outputs are dropped with its KV, though its user has read them."""

CAUGHT_BY = "test_it_keeps_its_output"
MESSAGE = "only the KV is lost"


class Scheduler:
    def preempt(self, request):
        given_back = self.batch.tokens.pop(request, 0)
        request.num_computed_tokens -= given_back
        self.running.remove(request)
        self._park(request)
        request.output.clear()
        request.num_tokens = len(request.prompt)
        request.num_preemptions += 1
        self.batch.preempted.append(request)
        self.waiting.push(request)
        return given_back

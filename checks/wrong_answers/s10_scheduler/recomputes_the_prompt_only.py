"""A victim comes back with its prompt alone. Its outputs lost their KV too, and nothing computes it again before the next token is due."""

CAUGHT_BY = "test_a_returner_recomputes_its_prompt_and_its_outputs"
MESSAGE = "its outputs lost their KV too"


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
            budget -= self.compute(request, len(request.prompt))
        return budget

"""Who fits joins, whoever stands in front. The small ones run, and the head can wait for ever."""

CAUGHT_BY = "test_others_follow_until_the_head_has_to_wait"
MESSAGE = "Nobody overtakes it"


class Scheduler:
    def admit_pass(self, budget):
        for request in list(self.waiting):
            wait = self.why_wait(request, budget)
            if wait is not None:
                self.batch.head = self.batch.head or wait
                continue
            self.waiting.remove(request)
            self.running.append(request)
            (self.batch.resumed if request.num_preemptions else self.batch.admitted).append(request)
            self._restore(request)
            budget -= self.compute(request, self.chunk_size(request, budget))
        return budget

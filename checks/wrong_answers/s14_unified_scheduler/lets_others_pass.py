"""R4: the head does not fit, so whoever behind it fits joins: the head may wait for ever."""

CAUGHT_BY = "test_nobody_overtakes_the_head"
MESSAGE = "look at the head only"


class UnifiedScheduler:
    def admission_pass(self, budget: int) -> int:
        for request in list(self.waiting):
            wait = self.why_wait(request, budget)
            self.batch.head = self.batch.head or wait
            if wait is not None:
                continue
            hit = self.look_up(request)
            cached = len(hit) * self.config.block_size
            n = self.step_size(request, cached, budget)
            self.waiting.remove(request)
            self.running.append(request)
            (self.batch.resumed if request.num_preemptions else self.batch.admitted).append(request)
            self.batch.hits[request] = request.num_computed_tokens = cached
            self.compute(request, n, hit)
            budget -= n
        return budget

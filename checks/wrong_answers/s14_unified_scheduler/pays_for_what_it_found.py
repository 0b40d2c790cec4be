"""R4b: charges the budget for the cached tokens too, as if a hit saved memory and no work."""

CAUGHT_BY = "test_what_was_found_is_neither_computed_nor_paid_for"
MESSAGE = "charged for what is computed only"


class UnifiedScheduler:
    def admission_pass(self, budget: int) -> int:
        while self.waiting:
            request = self.waiting.head()
            self.batch.head = self.why_wait(request, budget)
            if self.batch.head is not None:
                break
            hit = self.look_up(request)
            cached = len(hit) * self.config.block_size
            n = self.step_size(request, cached, budget)
            self.waiting.pop()
            self.running.append(request)
            (self.batch.resumed if request.num_preemptions else self.batch.admitted).append(request)
            self.batch.hits[request] = request.num_computed_tokens = cached
            self.compute(request, n, hit)
            budget -= n + cached
        return budget

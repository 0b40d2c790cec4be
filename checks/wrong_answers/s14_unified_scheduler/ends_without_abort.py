"""R9: takes the finished out of `running` and frees their blocks itself; the worker is never told, and the id stays
taken."""

CAUGHT_BY = "test_the_worker_hears_of_the_end_with_the_next_step"
MESSAGE = "leave through `abort`"


class UnifiedScheduler:
    def update(self, batch, tokens) -> list:
        if self.safe:
            self.name_computed(batch)
        finished = append_tokens(batch, tokens)
        for request in finished:
            self.running.remove(request)
            self.pool.release(request)
        return finished

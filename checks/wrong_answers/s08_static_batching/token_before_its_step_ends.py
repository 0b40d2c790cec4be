"""The tokens are handed over before the clock moves, so each appears one step too early and TTFT misses the prefill."""

CAUGHT_BY = "test_the_clock_moves_before_the_token_appears"
MESSAGE = "move the clock first, then update"


class Engine:
    def step(self):
        self.arrive()
        batch = self.scheduler.schedule()
        if not batch.tokens:
            self.idle(batch)
            return batch
        try:
            tokens, step_ns = self.runner.execute(batch)
        except Exception as error:
            self.fail(batch, error)
            return batch
        finished = self.scheduler.update(batch, tokens)
        self.clock_ns += step_ns
        self.report.record(self.clock_ns, batch, tokens, finished, self.scheduler)
        return batch

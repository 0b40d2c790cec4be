"""A broken step is taken for a broken engine: whoever waits is ended too, though nothing happened to them."""

CAUGHT_BY = "test_a_runner_that_raises_ends_the_requests_of_its_batch_and_no_others"
MESSAGE = "catch Exception around `execute` alone"


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
            for request in list(self.scheduler.waiting):
                self.abort(request.id, "error")
            return batch
        self.clock_ns += step_ns
        finished = self.scheduler.update(batch, tokens)
        self.report.record(self.clock_ns, batch, tokens, finished, self.scheduler)
        return batch

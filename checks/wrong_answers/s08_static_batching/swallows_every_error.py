"""The `try` holds the whole turn, so that a bug of the scheduler looks like an error of the runner."""

CAUGHT_BY = "test_a_bug_of_the_scheduler_is_not_an_error_of_the_runner"
MESSAGE = "swallowing more hides"


class Engine:
    def step(self):
        self.arrive()
        batch = self.scheduler.schedule()
        if not batch.tokens:
            self.idle(batch)
            return batch
        try:
            tokens, step_ns = self.runner.execute(batch)
            self.clock_ns += step_ns
            finished = self.scheduler.update(batch, tokens)
            self.report.record(self.clock_ns, batch, tokens, finished, self.scheduler)
        except Exception as error:
            self.fail(batch, error)
        return batch

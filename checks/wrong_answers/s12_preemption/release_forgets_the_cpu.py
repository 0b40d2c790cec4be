"""An abort looks for a request's GPU blocks. One that is swapped out has none, and its CPU blocks are lost."""

CAUGHT_BY = "test_an_abort_in_any_state_gives_everything_back"
MESSAGE = "CPU blocks"


class SwappingScheduler:
    def release(self, request):
        (self.running if request in self.running else self.waiting).remove(request)
        self.pool.release(request)

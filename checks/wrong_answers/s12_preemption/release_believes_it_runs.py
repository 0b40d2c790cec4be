"""Whoever ends was running: true for those who finish, not for a user who closes the tab while the request waits."""

CAUGHT_BY = "test_an_abort_in_any_state_gives_everything_back"
MESSAGE = "who ends need not run"


class SwappingScheduler:
    def release(self, request):
        self.running.remove(request)
        self.pool.release(request)
        cpu_blocks = self.cpu_tables.pop(request, None)
        if cpu_blocks is not None:
            self.cpu_pool.free(cpu_blocks)

"""An abort takes a request out of its queue and forgets the blocks: each closed browser tab makes the pool smaller."""

CAUGHT_BY = "test_an_abort_in_any_state_gives_everything_back"
MESSAGE = "its blocks never came back"


class Scheduler:
    def abort(self, request_id, reason="abort"):
        request = self._live.pop(request_id, None)
        if request is not None:
            (self.running if request in self.running else self.waiting).remove(request)
            if reason != "abort":
                self.pool.release(request)
            request.finish_reason = reason
        return request

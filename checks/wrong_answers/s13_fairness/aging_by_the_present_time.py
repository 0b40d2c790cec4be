"""A priority is aged by the time waited so far, read from a clock that runs: two keys made at different times can't be
compared."""

CAUGHT_BY = "test_the_key_is_exact"
MESSAGE = "present time"


class AgingPriority:
    def key(self, request):
        self.now = getattr(self, "now", 0) + 1
        return request.priority - float(self.rate) * (self.now - request.arrival_ns), request.arrival_ns

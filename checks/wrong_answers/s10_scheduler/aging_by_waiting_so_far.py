"""The later a request arrives, the better its key: the sign of aging is turned round, and the old ones starve for good."""

CAUGHT_BY = "test_waiting_improves_a_priority"
MESSAGE = "Later arrivals count as larger"


class AgedPriority:
    def key(self, request):
        return request.priority - self.points_per_second * request.arrival_ns / 1e9, request.arrival_ns

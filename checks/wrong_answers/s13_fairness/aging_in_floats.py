"""The key is a float: a tenth of a point, thirty times, is not three points, and a tie goes the wrong way."""

CAUGHT_BY = "test_the_key_is_exact"
MESSAGE = "whole numbers"


class AgingPriority:
    def key(self, request):
        return request.priority + float(self.rate) * request.arrival_ns, request.arrival_ns

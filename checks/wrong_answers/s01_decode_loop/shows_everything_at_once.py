"""What arrives is shown at once, and a stop string that begins in one token and ends in another is on the screen already."""

CAUGHT_BY = "test_it_may_span_several_tokens"
MESSAGE = "what has been shown can"


class StopStrings:
    def feed(self, new):
        for stop in self.stops:
            if stop in new:
                self.stopped = stop
                return new[: new.find(stop)]
        return new

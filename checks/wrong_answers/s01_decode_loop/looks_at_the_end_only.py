"""The text ends if it ends with a stop string: endswith() misses one that lies inside a token."""

CAUGHT_BY = "test_it_may_begin_and_end_inside_one_token"
MESSAGE = "not at its end only"


class StopStrings:
    def feed(self, new):
        text = self.held + new
        for stop in self.stops:
            if text.endswith(stop):
                self.stopped, self.held = stop, ""
                return text[: -len(stop)]
        starts = range(max(0, len(text) - self.longest + 1), len(text))
        first = next((i for i in starts if any(stop.startswith(text[i:]) for stop in self.stops)), len(text))
        self.held = text[first:]
        return text[:first]

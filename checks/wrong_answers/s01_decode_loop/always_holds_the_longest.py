"""The last longest - 1 letters are held back always, whatever they are. Nothing is ever wrong, but every stream is late."""

CAUGHT_BY = "test_it_holds_no_more_than_may_begin_a_stop_string"
MESSAGE = "would delay every text"


class StopStrings:
    def feed(self, new):
        text = self.held + new
        ends = {stop: text.find(stop) + len(stop) for stop in self.stops if stop in text}
        if ends:
            self.stopped, self.held = min(ends, key=ends.__getitem__), ""
            return text[: text.find(self.stopped)]
        first = max(0, len(text) - self.longest + 1)
        self.held = text[first:]
        return text[:first]

"""A token is held only if all of it may begin a stop string; a beginning in its second half is shown."""

CAUGHT_BY = "test_it_may_begin_in_the_middle_of_a_token"
MESSAGE = "show AB, hold D"


class StopStrings:
    def feed(self, new):
        text = self.held + new
        ends = {stop: text.find(stop) + len(stop) for stop in self.stops if stop in text}
        if ends:
            self.stopped, self.held = min(ends, key=ends.__getitem__), ""
            return text[: text.find(self.stopped)]
        if any(stop.startswith(text) for stop in self.stops):
            self.held = text
            return ""
        self.held = ""
        return text

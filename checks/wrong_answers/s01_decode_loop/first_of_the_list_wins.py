"""The first stop string of the list that is found ends the text, also where another one is complete before it."""

CAUGHT_BY = "test_of_two_stop_strings_the_one_that_is_complete_first_counts"
MESSAGE = "compare where they end"


class StopStrings:
    def feed(self, new):
        text = self.held + new
        for stop in self.stops:
            if stop in text:
                self.stopped, self.held = stop, ""
                return text[: text.find(stop)]
        starts = range(max(0, len(text) - self.longest + 1), len(text))
        first = next((i for i in starts if any(stop.startswith(text[i:]) for stop in self.stops)), len(text))
        self.held = text[first:]
        return text[:first]

"""min() over `running`: among equals it names the first, the one that has been running longest."""

CAUGHT_BY = "test_among_equals_the_last_goes"
MESSAGE = "walk through `running` from its end"


class SwappingScheduler:
    def pick_victim(self):
        if self.victim_key is None:
            return self.policy.victim(self.running)
        return min(self.running, key=self.victim_key)

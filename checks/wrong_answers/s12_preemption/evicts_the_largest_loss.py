"""The victim with the largest key: whoever frees most blocks. It is also the one that loses most work."""

CAUGHT_BY = "test_the_smallest_key_goes"
MESSAGE = "the smallest goes"


class SwappingScheduler:
    def pick_victim(self):
        if self.victim_key is None:
            return self.policy.victim(self.running)
        return max(reversed(self.running), key=self.victim_key)

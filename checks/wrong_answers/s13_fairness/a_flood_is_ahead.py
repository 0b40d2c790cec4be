"""Everybody who waits is ahead of a newcomer, also under a fair share: a flood closes the door to all others."""

CAUGHT_BY = "test_a_flood_is_not_ahead"
MESSAGE = "10 come before that"


class FairScheduler:
    def tokens_before(self, request):
        return sum(other.num_tokens for other in self.waiting if self.place(other) <= self.place(request))

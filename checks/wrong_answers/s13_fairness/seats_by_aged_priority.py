"""Seats are taken by aged priority: whoever came early keeps the seat, and the option does nothing for the urgent."""

CAUGHT_BY = "test_raw_priorities_decide_even_with_aging"
MESSAGE = "as it was given"


class FairScheduler:
    def seat_for(self, request, budget):
        victim = max(self.running, key=lambda other: (*self.policy.key(other), other.order))
        if self.policy.key(victim)[0] <= self.policy.key(request)[0]:
            return None
        refund = self.batch.tokens.get(victim, 0)
        return victim if self.fits_without(victim, request, budget + refund) else None

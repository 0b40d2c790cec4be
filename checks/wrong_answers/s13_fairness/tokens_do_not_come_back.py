"""The victim's tokens of this step are not counted when its seat is weighed, so with a spent budget nobody urgent gets in."""

CAUGHT_BY = "test_what_comes_back_counts"
MESSAGE = "comes back to the budget"


class FairScheduler:
    def seat_for(self, request, budget):
        victim = max(self.running, key=lambda other: (other.priority, other.arrival_ns, other.order))
        if victim.priority <= request.priority:
            return None
        return victim if self.fits_without(victim, request, budget) else None

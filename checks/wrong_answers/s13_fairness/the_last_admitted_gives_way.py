"""The victim is the last admitted, as under FCFS, so the order by which a victim is chosen isn't the one by which it was let
in."""

CAUGHT_BY = "test_the_least_urgent_gives_its_seat"
MESSAGE = "priority, arrival_ns, order"


class FairScheduler:
    def seat_for(self, request, budget):
        victim = self.running[-1]
        if victim.priority <= request.priority:
            return None
        refund = self.batch.tokens.get(victim, 0)
        return victim if self.fits_without(victim, request, budget + refund) else None

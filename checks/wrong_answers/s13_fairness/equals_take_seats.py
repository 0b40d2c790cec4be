"""A request takes the seat of an equal. The victim is as entitled as the thief, and takes it back: ping-pong."""

CAUGHT_BY = "test_equals_keep_their_seats"
MESSAGE = "for ever"


class FairScheduler:
    def seat_for(self, request, budget):
        victim = max(self.running, key=lambda other: (other.priority, other.arrival_ns, other.order))
        if victim.priority < request.priority:
            return None
        refund = self.batch.tokens.get(victim, 0)
        return victim if self.fits_without(victim, request, budget + refund) else None

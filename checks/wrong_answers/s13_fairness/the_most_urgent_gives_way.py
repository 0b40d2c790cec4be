"""Larger is more urgent, as in SGLang or Kubernetes. Here it is the other way round, and the most important request loses its
seat."""

CAUGHT_BY = "test_the_least_urgent_gives_its_seat"
MESSAGE = "less urgent here"


class FairScheduler:
    def seat_for(self, request, budget):
        victim = min(self.running, key=lambda other: (other.priority, other.arrival_ns, other.order))
        if victim.priority == request.priority:
            return None
        refund = self.batch.tokens.get(victim, 0)
        return victim if self.fits_without(victim, request, budget + refund) else None

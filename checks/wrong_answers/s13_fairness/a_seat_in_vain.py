"""A seat is taken whenever there is somebody less urgent. If the blocks don't suffice even so, two requests have stopped and
none has begun."""

CAUGHT_BY = "test_no_seat_is_taken_in_vain_for_blocks"
MESSAGE = "would help nobody"


class FairScheduler:
    def seat_for(self, request, budget):
        victim = max(self.running, key=lambda other: (other.priority, other.arrival_ns, other.order))
        if victim.priority <= request.priority:
            return None
        return victim

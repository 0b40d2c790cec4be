"""A freed piece is put in front of the holes, as in a stack, so the first hole is not the first in memory."""

CAUGHT_BY = "test_holes_stand_in_the_order_of_their_starts"
MESSAGE = "the first by *start*"


class FirstFit:
    def free(self, start):
        if start not in self.used:
            raise BlockError(f"no piece starts at slot {start}")
        self.holes.insert(0, (start, self.used.pop(start)))

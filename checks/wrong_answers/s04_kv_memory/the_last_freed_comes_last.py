"""A freed piece is put behind the holes, as in a queue, wherever it lies in memory."""

CAUGHT_BY = "test_holes_stand_in_the_order_of_their_starts"
MESSAGE = "the first by *start*"


class FirstFit:
    def free(self, start):
        if start not in self.used:
            raise BlockError(f"no piece starts at slot {start}")
        self.holes.append((start, self.used.pop(start)))

"""A freed piece joins the hole behind it and forgets the one before it."""

CAUGHT_BY = "test_it_joins_the_hole_before_it"
MESSAGE = "they are one hole of 7"


class FirstFit:
    def free(self, start):
        if start not in self.used:
            raise BlockError(f"no piece starts at slot {start}")
        size = self.used.pop(start)
        behind = [hole for hole in self.holes if hole[0] == start + size]
        for hole in behind:
            self.holes.remove(hole)
            size += hole[1]
        insort(self.holes, (start, size))

"""A freed piece becomes a hole of its own, also where it touches another."""

CAUGHT_BY = "test_it_joins_the_hole_behind_it"
MESSAGE = "a piece of 7 would find none"


class FirstFit:
    def free(self, start):
        if start not in self.used:
            raise BlockError(f"no piece starts at slot {start}")
        insort(self.holes, (start, self.used.pop(start)))

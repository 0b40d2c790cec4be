"""The smallest hole that is large enough is taken: best fit, in place of the first."""

CAUGHT_BY = "test_the_first_hole_that_is_large_enough"
MESSAGE = "the best fit would be 14"


class FirstFit:
    def allocate(self, size):
        fitting = [(length, start) for start, length in self.holes if length >= size]
        if not fitting:
            return None
        length, start = min(fitting)
        i = self.holes.index((start, length))
        self.holes[i : i + 1] = [(start + size, length - size)] if length > size else []
        self.used[start] = size
        return start

"""An exact fit leaves a hole of length 0 behind."""

CAUGHT_BY = "test_an_exact_fit_leaves_no_hole"
MESSAGE = "a hole of length 0 is none"


class FirstFit:
    def allocate(self, size):
        for i, (start, length) in enumerate(self.holes):
            if length >= size:
                self.holes[i] = (start + size, length - size)
                self.used[start] = size
                return start
        return None

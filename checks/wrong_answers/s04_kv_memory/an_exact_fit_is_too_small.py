"""A hole must be longer than the piece: an exact fit is passed over."""

CAUGHT_BY = "test_an_exact_fit_leaves_no_hole"
MESSAGE = "an exact fit is enough"


class FirstFit:
    def allocate(self, size):
        for i, (start, length) in enumerate(self.holes):
            if length > size:
                self.holes[i] = (start + size, length - size)
                self.used[start] = size
                return start
        return None

"""Whether a request fits is asked of all free slots together, as if its piece could lie in several holes."""

CAUGHT_BY = "test_it_is_none_when_no_hole_is_that_large"
MESSAGE = "not in a row"


class FirstFit:
    def allocate(self, size):
        if self.num_free < size:
            return None
        for i, (start, length) in enumerate(self.holes):
            if length > size:
                self.holes[i] = (start + size, length - size)
                self.used[start] = size
                return start
            if length == size:
                del self.holes[i]
                self.used[start] = size
                return start
        start, length = self.holes.pop()
        self.used[start] = size
        return start

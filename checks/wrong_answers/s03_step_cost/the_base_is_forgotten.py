"""The knee is floor over slope: that a step has a base beside its line is forgotten."""

CAUGHT_BY = "test_it_is_where_the_line_meets_the_floor"
MESSAGE = "the base is taken off the floor first"


class Fit:
    def knee(self):
        return self.floor_ms / self.ms_per_token

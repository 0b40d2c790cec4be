"""A tenant that comes gets the smallest counter of those who wait, even if it has had more."""

CAUGHT_BY = "test_a_counter_never_falls"
MESSAGE = "never lowered"


class FairShare:
    def arrive(self, tenant, waiting):
        others = [self.served.get(other, 0) for other in waiting]
        if not others and self.left_last is not None:
            others = [self.served.get(self.left_last, 0)]
        self.served[tenant] = min(others) if others else self.served.get(tenant, 0)

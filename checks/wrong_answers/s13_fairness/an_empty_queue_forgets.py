"""With nobody waiting a newcomer begins at 0, although somebody who runs has had thousands."""

CAUGHT_BY = "test_an_empty_queue_is_no_reset"
MESSAGE = "would starve"


class FairShare:
    def arrive(self, tenant, waiting):
        others = [self.served.get(other, 0) for other in waiting]
        self.served[tenant] = max([self.served.get(tenant, 0), *([min(others)] if others else [])])

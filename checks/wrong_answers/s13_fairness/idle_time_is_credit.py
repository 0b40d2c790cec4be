"""A tenant that comes back keeps its old counter. It has the machine to itself until it has caught up with months of others'
work."""

CAUGHT_BY = "test_idle_time_earns_no_credit"
MESSAGE = "machine to itself"


class FairShare:
    def arrive(self, tenant, waiting):
        self.served.setdefault(tenant, 0)

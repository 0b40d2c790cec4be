"""The smallest counter of all tenants is the measure, so one that has long left pulls everybody down."""

CAUGHT_BY = "test_only_those_who_wait_count"
MESSAGE = "not a measure"


class FairShare:
    def arrive(self, tenant, waiting):
        self.served[tenant] = max(self.served.get(tenant, 0), min(self.served.values(), default=0))

"""The last admitted is evicted whatever the policy says, so that an urgent newcomer pays for an idle old one."""

CAUGHT_BY = "test_priority_evicts_the_least_urgent"
MESSAGE = "ask the policy"


class Scheduler:
    def pick_victim(self):
        return self.running[-1]

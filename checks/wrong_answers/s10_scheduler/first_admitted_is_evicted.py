"""The oldest running request is evicted: it has gathered the most work, and all of it is thrown away."""

CAUGHT_BY = "test_fcfs_evicts_the_last_admitted"
MESSAGE = "the last admitted, whose user has read least"


class Scheduler:
    def pick_victim(self):
        return self.running[0]

"""The runner broke in the step that should have copied a victim's KV, and the scheduler goes on as if the copy were there."""

CAUGHT_BY = "test_the_victim_recomputes"
MESSAGE = "its copy may not have happened"


class SwappingScheduler:
    def drop_copies(self, batch):
        pass

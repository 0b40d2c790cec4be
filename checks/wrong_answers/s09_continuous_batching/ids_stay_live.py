"""A finished request leaves its slot and keeps its id, so that the id can never be used again."""

CAUGHT_BY = "test_its_id_may_be_used_again"
MESSAGE = "delete it there too"


class ContinuousBatcher:
    def retire(self, finished):
        self.running = [request for request in self.running if request.finish_reason is None]

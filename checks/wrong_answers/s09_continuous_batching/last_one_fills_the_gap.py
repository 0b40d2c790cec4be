"""The last running request moves into a freed slot: fast, and it changes the order of admission that others rely on."""

CAUGHT_BY = "test_the_others_keep_their_order"
MESSAGE = "keep the order of admission"


class ContinuousBatcher:
    def retire(self, finished):
        for request in finished:
            place = self.running.index(request)
            self.running[place] = self.running[-1]
            self.running.pop()
            del self._live[request.id]

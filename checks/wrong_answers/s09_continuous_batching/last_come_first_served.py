"""The newest request is taken from the back of the queue, so that an old one can wait for ever."""

CAUGHT_BY = "test_a_free_slot_goes_to_the_head_of_the_queue"
MESSAGE = "popleft() takes the front"


class ContinuousBatcher:
    def refill(self, batch):
        while self.can_admit():
            request = self.waiting.pop()
            self.running.append(request)
            batch.admitted.append(request)

"""One request joins per step, `if` for `while`, and the other free slots stay idle."""

CAUGHT_BY = "test_all_free_slots_are_filled_at_once"
MESSAGE = "*while* can_admit()"


class ContinuousBatcher:
    def refill(self, batch):
        if self.can_admit():
            request = self.waiting.popleft()
            self.running.append(request)
            batch.admitted.append(request)

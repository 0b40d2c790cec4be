"""The prediction counts the newcomer's own prompt and forgets who goes first."""

CAUGHT_BY = "test_who_waits_goes_first"
MESSAGE = "9 + 8 + 4 = 21"


class Scheduler:
    def predict_ttft_ms(self, request):
        budget = self.config.max_num_batched_tokens
        return -(-request.num_tokens // budget) * self.cost.step_ns(budget, 0) / 1e6

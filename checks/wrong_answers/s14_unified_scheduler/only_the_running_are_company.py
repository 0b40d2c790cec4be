"""R0: counts those who run and forgets those who wait, so a long prompt takes the step that it should leave to them."""

CAUGHT_BY = "test_the_threshold_caps_a_long_one_while_another_is_there"
MESSAGE = "while running and waiting are more than one"


class UnifiedScheduler:
    def step_size(self, request, computed: int, budget: int) -> int:
        n = request.num_tokens - computed
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < n and len(self.running) > 1:
            n = threshold
        return n if n < budget else budget

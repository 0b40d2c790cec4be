"""R0: the threshold caps every long prompt, also one that is alone and could have the whole step."""

CAUGHT_BY = "test_a_lone_request_is_not_cut"
MESSAGE = "there is nobody else"


class UnifiedScheduler:
    def step_size(self, request, computed: int, budget: int) -> int:
        n = request.num_tokens - computed
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < n:
            n = threshold
        return n if n < budget else budget

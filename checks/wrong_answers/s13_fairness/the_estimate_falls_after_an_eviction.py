"""After an eviction the estimate becomes what the answers took so far, even if that is less than it was."""

CAUGHT_BY = "test_an_eviction_never_lowers_it"
MESSAGE = "can't say: too high"


class TokenRatio:
    def observe(self, running, evicted):
        if not evicted:
            self.ratio = max(self.ratio - self.decay, self.least)
        elif running:
            made = sum(request.num_output_tokens + self.ahead for request in running)
            self.ratio = min(1.0, made / sum(request.max_tokens for request in running))
        return self.ratio

"""The whole prompt, and one for the token that comes after it. Who fills the pool exactly fits, and never joins."""

CAUGHT_BY = "test_full_prompt_is_content_with_an_exact_fit"
MESSAGE = "whoever fits exactly joins"


class ChunkedScheduler:
    def gate(self, request, chunk):
        whole = self.config.admission == "full_prompt"
        return self.pool.missing(request, request.num_tokens + 1 - request.num_computed_tokens if whole else chunk)

"""A reservation counts prompt and max_tokens. The last sampled token is never stored."""

CAUGHT_BY = "test_to_completion"
MESSAGE = "never stored"


class FairScheduler:
    def gate(self, request, chunk):
        if self.config.admission != "to_completion":
            return self.pool.missing(
                request,
                request.num_tokens - request.num_computed_tokens if self.config.admission == "full_prompt" else chunk,
            )
        size = self.config.block_size
        own = -(-(len(request.prompt) + request.max_tokens) // size)
        return own + sum(self.promised(other) for other in self.running)

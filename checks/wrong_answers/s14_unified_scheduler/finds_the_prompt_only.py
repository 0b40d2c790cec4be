"""R4a: looks up as if a request were its prompt: after an eviction it recomputes outputs whose KV is still there."""

CAUGHT_BY = "test_outputs_are_found_too"
MESSAGE = "prompt *and* outputs"


class UnifiedScheduler:
    def look_up(self, request) -> list[int]:
        if not self.config.prefix_caching:
            return []
        return self.pool.lookup(self.chain(request), len(request.prompt))

"""The threshold caps every chunk, also when nobody is there to profit from it: an idle machine computes a long prompt in small steps."""

CAUGHT_BY = "test_a_lone_request_is_not_held_back"
MESSAGE = "with nobody else running or waiting"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens - request.num_computed_tokens
        if gap > budget:
            gap = max(budget, 0) if self.config.chunked_prefill else 0
        threshold = self.config.long_prefill_token_threshold
        return threshold if 0 < threshold < gap else gap

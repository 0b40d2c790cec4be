"""Whoever is in the batch is named after its step. But a request that was aborted meanwhile is written down again, for ever."""

CAUGHT_BY = "test_nothing_is_named_that_has_left"
MESSAGE = "would write down its names again"


class UnifiedScheduler:
    def name_computed(self, batch):
        for request, n in batch.tokens.items():
            self.name_blocks(request, request.num_computed_tokens - n)

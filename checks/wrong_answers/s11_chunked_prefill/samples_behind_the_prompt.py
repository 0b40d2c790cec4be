"""A token is due once the prompt is computed. An evicted request that recomputes its outputs in chunks makes one of them a second time."""

CAUGHT_BY = "test_a_returning_request_repeats_its_outputs_before_it_makes_another"
MESSAGE = "compare with num_tokens"


class ChunkedScheduler:
    def samples(self, request):
        return request.num_computed_tokens >= len(request.prompt)

"""A prompt waits until all of it fits into a step, as before. The long one still blocks everybody behind it."""

CAUGHT_BY = "test_a_prompt_that_does_not_fit_is_cut"
MESSAGE = "it need not wait until it fits"


class ChunkedScheduler:
    def chunk_size(self, request, budget):
        gap = request.num_tokens - request.num_computed_tokens
        return gap if gap <= budget else 0

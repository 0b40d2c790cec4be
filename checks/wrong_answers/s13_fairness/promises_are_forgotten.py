"""Reserving to completion looks at the newcomer only. What those who run will still take is not free, though it is not taken
yet."""

CAUGHT_BY = "test_what_is_promised_to_those_who_run_is_not_free"
MESSAGE = "promised to A"


class FairScheduler:
    def gate(self, request, chunk):
        if self.config.admission != "to_completion":
            return self.pool.missing(
                request,
                request.num_tokens - request.num_computed_tokens if self.config.admission == "full_prompt" else chunk,
            )
        return self.pool.missing(request, self.slots(request) - request.num_computed_tokens)

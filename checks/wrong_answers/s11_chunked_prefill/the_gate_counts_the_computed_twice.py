"""`missing` is asked for all that is known. It counts from what is computed, so that part is counted twice."""

CAUGHT_BY = "test_what_it_has_already_is_not_asked_for_again"
MESSAGE = "not num_tokens"


class ChunkedScheduler:
    def gate(self, request, chunk):
        whole = self.config.admission == "full_prompt"
        return self.pool.missing(request, request.num_tokens if whole else chunk)

"""`full_prompt` is taken at its word: the prompt. Who returns after an eviction needs room for its outputs as well."""

CAUGHT_BY = "test_full_prompt_counts_the_outputs_of_who_returns"
MESSAGE = "prompt and output again"


class ChunkedScheduler:
    def gate(self, request, chunk):
        whole = self.config.admission == "full_prompt"
        return self.pool.missing(request, len(request.prompt) if whole else chunk)

"""Tokens over block size, rounded up: that is what an empty table lacks. A part-filled last block has room of its own."""

CAUGHT_BY = "test_what_it_has_already_is_not_asked_for_again"
MESSAGE = "takes off the blocks it holds"


class ChunkedScheduler:
    def gate(self, request, chunk):
        whole = self.config.admission == "full_prompt"
        n = request.num_tokens - request.num_computed_tokens if whole else chunk
        return -(-n // self.config.block_size)

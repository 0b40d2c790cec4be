"""Every chunk yields a token. What follows a chunk is known already: it is the next token of the prompt, and the user gets a guess at it for an answer."""

CAUGHT_BY = "test_a_chunk_that_is_not_the_last_yields_nothing"
MESSAGE = "Only behind the last known token"


class ChunkedScheduler:
    def samples(self, request):
        return True

"""The new blocks replace the table in place of extending it, and what was stored is lost to its request."""

CAUGHT_BY = "test_new_blocks_go_to_the_end_of_the_table"
MESSAGE = "keep what is there"


class BlockPool:
    def grow(self, request, num_tokens):
        missing = self.missing(request, num_tokens)
        if missing > 0:
            request.blocks = self.allocate(missing)

"""A block is opened when the known tokens divide evenly: a token early, or not at all after a prompt that fills its blocks."""

CAUGHT_BY = "test_the_token_that_fills_a_block_needs_none"
MESSAGE = "not the remainder of 4"


class BlockPool:
    def missing(self, request, num_tokens):
        if num_tokens > 1:
            return blocks_needed(request.num_computed_tokens + num_tokens, self.block_size) - len(request.blocks)
        return 1 if request.num_tokens % self.block_size == 0 else 0

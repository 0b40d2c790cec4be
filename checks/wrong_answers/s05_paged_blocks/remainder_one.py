"""A block is opened when one known token is left over: right for a decode step, and never true with blocks of one token."""

CAUGHT_BY = "test_with_blocks_of_one_token_every_token_opens_one"
MESSAGE = "a remainder of 1 never holds"


class BlockPool:
    def missing(self, request, num_tokens):
        if num_tokens > 1:
            return blocks_needed(request.num_computed_tokens + num_tokens, self.block_size) - len(request.blocks)
        return 1 if request.num_tokens % self.block_size == 1 else 0

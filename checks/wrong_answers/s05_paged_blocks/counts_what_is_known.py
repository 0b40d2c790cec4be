"""The blocks are for all known tokens and the new ones, though the last known token is itself the new one."""

CAUGHT_BY = "test_the_token_that_fills_a_block_needs_none"
MESSAGE = "count stored tokens, not known ones"


class BlockPool:
    def missing(self, request, num_tokens):
        return blocks_needed(request.num_tokens + num_tokens, self.block_size) - len(request.blocks)

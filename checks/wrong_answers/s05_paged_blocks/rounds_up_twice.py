"""The new tokens get blocks of their own, as if the last block of the table had no room left."""

CAUGHT_BY = "test_what_is_stored_counts_too"
MESSAGE = "round up once, after adding"


class BlockPool:
    def missing(self, request, num_tokens):
        stored = blocks_needed(request.num_computed_tokens, self.block_size)
        return stored + blocks_needed(num_tokens, self.block_size) - len(request.blocks)

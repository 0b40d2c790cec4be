"""Only the upper end is checked; block -1 is Python's way to the last block of the pool."""

CAUGHT_BY = "test_a_block_of_another_pool_is_refused"
MESSAGE = "is_free[-1] is the last block"


class BlockPool:
    def free(self, blocks):
        blocks = list(blocks)
        for block in blocks:
            if block >= self.num_blocks:
                raise BlockError(f"block {block} is not of this pool, which has blocks 0 to {self.num_blocks - 1}")
            if self.is_free[block]:
                raise BlockError(f"block {block} is freed twice: two requests believe that they own it")
        if len(set(blocks)) < len(blocks):
            raise BlockError(f"one of {blocks} is freed twice")
        for block in blocks:
            self.is_free[block] = True
        self.free_blocks += blocks
        self.num_free += len(blocks)

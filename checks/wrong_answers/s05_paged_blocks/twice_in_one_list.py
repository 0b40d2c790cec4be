"""All blocks are checked against `is_free` first: one that stands in the list twice is not free at either look."""

CAUGHT_BY = "test_the_same_block_twice_in_one_list_is_refused"
MESSAGE = "remember what you have seen"


class BlockPool:
    def free(self, blocks):
        blocks = list(blocks)
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise BlockError(f"block {block} is not of this pool, which has blocks 0 to {self.num_blocks - 1}")
            if self.is_free[block]:
                raise BlockError(f"block {block} is freed twice: two requests believe that they own it")
        for block in blocks:
            self.is_free[block] = True
        self.free_blocks += blocks
        self.num_free += len(blocks)

"""Each block is checked just before it is freed, so that a bad one leaves the list half freed behind it."""

CAUGHT_BY = "test_one_bad_block_and_the_whole_list_stays_out"
MESSAGE = "look at every block before you change anything"


class BlockPool:
    def free(self, blocks):
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise BlockError(f"block {block} is not of this pool, which has blocks 0 to {self.num_blocks - 1}")
            if self.is_free[block]:
                raise BlockError(f"block {block} is freed twice: two requests believe that they own it")
            self.is_free[block] = True
            self.free_blocks.append(block)
            self.num_free += 1

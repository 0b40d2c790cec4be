"""The stack shrinks and `num_free` does not, so that a scheduler admits requests into memory that is taken."""

CAUGHT_BY = "test_what_it_hands_out_is_free_no_more"
MESSAGE = "keep it in step"


class BlockPool:
    def allocate(self, num_blocks):
        if num_blocks > len(self.free_blocks):
            raise NoFreeBlocks(f"asked for {num_blocks} KV blocks, {len(self.free_blocks)} of {self.num_blocks} are free")
        blocks = [self.free_blocks.pop() for _ in range(num_blocks)]
        for block in blocks:
            self.is_free[block] = False
        return blocks

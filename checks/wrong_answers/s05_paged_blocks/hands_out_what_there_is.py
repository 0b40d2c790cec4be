"""The pool gives as many blocks as it has before it complains, and those belong to nobody."""

CAUGHT_BY = "test_too_many_are_refused_and_none_is_handed_out"
MESSAGE = "all or none"


class BlockPool:
    def allocate(self, num_blocks):
        blocks = []
        for _ in range(num_blocks):
            if not self.free_blocks:
                raise NoFreeBlocks(f"asked for {num_blocks} KV blocks, {self.num_free} of {self.num_blocks} are free")
            block = self.free_blocks.pop()
            self.is_free[block] = False
            self.num_free -= 1
            blocks.append(block)
        return blocks

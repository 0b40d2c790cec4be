"""`allocate` is asked for what is missing, whatever its sign, and counts what it was asked for: -2 blocks make 2 more free."""

CAUGHT_BY = "test_a_table_never_shrinks"
MESSAGE = "missing was -2 and went to allocate"


class BlockPool:
    def allocate(self, num_blocks):
        if num_blocks > self.num_free:
            raise NoFreeBlocks(f"asked for {num_blocks} KV blocks, {self.num_free} of {self.num_blocks} are free")
        blocks = [self.free_blocks.pop() for _ in range(num_blocks)]
        for block in blocks:
            self.is_free[block] = False
        self.num_free -= num_blocks
        return blocks

    def grow(self, request, num_tokens):
        request.blocks += self.allocate(self.missing(request, num_tokens))

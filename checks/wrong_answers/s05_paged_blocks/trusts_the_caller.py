"""A freed block goes on the stack unseen, and one that is freed twice is handed out twice."""

CAUGHT_BY = "test_a_block_that_is_free_already_is_refused"
MESSAGE = "it would have two owners"


class BlockPool:
    def free(self, blocks):
        for block in blocks:
            self.is_free[block] = True
            self.free_blocks.append(block)
            self.num_free += 1

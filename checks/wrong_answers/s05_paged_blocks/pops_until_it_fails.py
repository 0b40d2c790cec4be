"""`pop` complains by itself when the stack is empty: with an IndexError, and after it has taken what there was."""

CAUGHT_BY = "test_too_many_are_refused_and_none_is_handed_out"
MESSAGE = "compare with `num_free` before the first pop"


class BlockPool:
    def allocate(self, num_blocks):
        blocks = [self.free_blocks.pop() for _ in range(num_blocks)]
        for block in blocks:
            self.is_free[block] = False
        self.num_free -= len(blocks)
        return blocks

"""`blocks` is taken for a list: an iterator is empty at the second walk, and has no length."""

CAUGHT_BY = "test_an_iterator_is_walked_only_once"
MESSAGE = "make a list of it first"


class BlockPool:
    def free(self, blocks):
        seen = set()
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.is_free[block] or block in seen:
                raise BlockError(f"block {block} can't be freed")
            seen.add(block)
        for block in blocks:
            self.is_free[block] = True
        self.free_blocks += blocks
        self.num_free += len(blocks)

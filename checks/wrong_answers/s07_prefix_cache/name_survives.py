"""A block keeps its name when it is handed out, so that a look-up finds KV that somebody else has written over."""

CAUGHT_BY = "test_a_block_that_is_taken_loses_its_name"
MESSAGE = "its KV is about to be overwritten"


class PrefixPool:
    def allocate(self, num_blocks):
        if num_blocks > self.num_free:
            raise NoFreeBlocks(f"asked for {num_blocks} KV blocks, {self.num_free} of {self.num_blocks} are free")
        blocks = [self.free_queue.popitem(last=False)[0] for _ in range(num_blocks)]
        for block in blocks:
            self.ref_count[block] = 1
        return blocks

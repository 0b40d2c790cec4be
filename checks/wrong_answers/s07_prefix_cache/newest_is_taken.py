"""New blocks come from the back of the queue, as from a stack: what was used last is evicted first."""

CAUGHT_BY = "test_the_front_of_the_queue_is_taken_first"
MESSAGE = "the front has been free for longest"


class PrefixPool:
    def allocate(self, num_blocks):
        if num_blocks > self.num_free:
            raise NoFreeBlocks(f"asked for {num_blocks} KV blocks, {self.num_free} of {self.num_blocks} are free")
        blocks = [self.free_queue.popitem()[0] for _ in range(num_blocks)]
        self.forget(blocks)
        for block in blocks:
            self.ref_count[block] = 1
        return blocks

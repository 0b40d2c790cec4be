"""A block loses its name with its last owner, so that the pool remembers only what somebody is using right now."""

CAUGHT_BY = "test_it_keeps_its_name"
MESSAGE = "that is the whole cache"


class PrefixPool:
    def free(self, blocks):
        for block in reversed(list(blocks)):
            if not 0 <= block < self.num_blocks or self.ref_count[block] == 0:
                raise BlockError(f"block {block} can't be freed")
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.forget([block])
                self.free_queue[block] = None
                self.free_queue.move_to_end(block, last=False)

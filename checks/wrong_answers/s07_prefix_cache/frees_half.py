"""Each block is checked when its turn comes, so that a refused call has freed those before the bad one."""

CAUGHT_BY = "test_a_refused_free_changes_nothing"
MESSAGE = "look at all of them before"


class PrefixPool:
    def free(self, blocks):
        nameless = []
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.ref_count[block] == 0:
                raise BlockError(f"block {block} can't be freed")
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free_queue[block] = None
                if self.names[block] is None:
                    nameless.append(block)
        for block in reversed(nameless):
            self.free_queue.move_to_end(block, last=False)

"""The blocks are freed in the order of the prompt, so that its beginning goes first and the rest can't be hit any more."""

CAUGHT_BY = "test_the_tail_is_evicted_first"
MESSAGE = "block 1 is of use only behind block 0"


class PrefixPool:
    def free(self, blocks):
        nameless = []
        for block in sorted(blocks):
            if not 0 <= block < self.num_blocks or self.ref_count[block] == 0:
                raise BlockError(f"block {block} can't be freed")
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free_queue[block] = None
                if self.names[block] is None:
                    nameless.append(block)
        for block in reversed(nameless):
            self.free_queue.move_to_end(block, last=False)

"""The first owner to leave gives the block back, and it is handed out while another request still reads it."""

CAUGHT_BY = "test_a_block_with_another_owner_stays"
MESSAGE = "one owner less, and one is left"


class PrefixPool:
    def free(self, blocks):
        nameless = []
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.ref_count[block] == 0:
                raise BlockError(f"block {block} can't be freed")
            self.ref_count[block] = 0
            self.free_queue[block] = None
            if self.names[block] is None:
                nameless.append(block)
        for block in reversed(nameless):
            self.free_queue.move_to_end(block, last=False)

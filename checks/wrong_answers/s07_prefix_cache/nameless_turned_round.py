"""The nameless blocks are pushed to the front one by one, which turns their order round."""

CAUGHT_BY = "test_nameless_ones_keep_their_order"
MESSAGE = "as a group"


class PrefixPool:
    def free(self, blocks):
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.ref_count[block] == 0:
                raise BlockError(f"block {block} can't be freed")
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free_queue[block] = None
                if self.names[block] is None:
                    self.free_queue.move_to_end(block, last=False)

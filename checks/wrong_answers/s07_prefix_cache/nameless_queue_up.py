"""Every freed block goes to the back, also those that nobody can ever hit: cached ones are evicted while they wait there."""

CAUGHT_BY = "test_a_nameless_block_goes_to_the_front"
MESSAGE = "nobody can ever hit it"


class PrefixPool:
    def free(self, blocks):
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.ref_count[block] == 0:
                raise BlockError(f"block {block} can't be freed")
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free_queue[block] = None

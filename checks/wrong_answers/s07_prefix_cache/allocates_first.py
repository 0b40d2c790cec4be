"""New blocks are taken before the hit is touched, and the front of the queue is the hit."""

CAUGHT_BY = "test_the_hit_is_touched_before_new_blocks_are_taken"
MESSAGE = "Touch, then allocate"


class PrefixPool:
    def claim(self, hit, num_new):
        needed = num_new + self.idle(hit)
        if needed > self.num_free:
            raise NoFreeBlocks(f"{needed} blocks needed, {self.num_free} are free")
        new = self.allocate(num_new)
        self.touch(hit)
        return [*hit, *new]

"""Every block of a hit is taken off the free ones, also one that a running request holds anyway: requests wait for nothing."""

CAUGHT_BY = "test_an_owned_hit_costs_nothing"
MESSAGE = "only the new block is taken"


class PrefixPool:
    def claim(self, hit, num_new):
        if num_new + len(hit) > self.num_free:
            raise NoFreeBlocks(f"{num_new + len(hit)} blocks needed, {self.num_free} are free")
        self.touch(hit)
        return [*hit, *self.allocate(num_new)]

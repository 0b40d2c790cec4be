"""The blocks of a hit that are free count as room for new ones too, so that the pool is found empty in the middle."""

CAUGHT_BY = "test_an_idle_hit_is_counted_once"
MESSAGE = "2 new and 2 idle hits need 4"


class PrefixPool:
    def claim(self, hit, num_new):
        if num_new > self.num_free:
            raise NoFreeBlocks(f"{num_new} new blocks needed, {self.num_free} are free")
        self.touch(hit)
        return [*hit, *[self.free_queue.popitem(last=False)[0] for _ in range(num_new)]]

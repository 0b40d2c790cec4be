"""A block that was a hit is registered once more, so that it loses its place among those of the same name."""

CAUGHT_BY = "test_a_hit_keeps_its_name_and_its_place"
MESSAGE = "leave it as it is"


class PrefixPool:
    def register(self, blocks, hashes):
        for block, name in zip(blocks, hashes):
            self.names[block] = name
            self.holders.setdefault(name, {}).pop(block, None)
            self.holders[name] = {block: None, **self.holders[name]}

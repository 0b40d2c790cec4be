"""One block a name: a second block of the same content replaces the first, as if equal blocks were one."""

CAUGHT_BY = "test_equal_blocks_are_not_merged"
MESSAGE = "both keep theirs"


class PrefixPool:
    def register(self, blocks, hashes):
        for block, name in zip(blocks, hashes):
            if self.names[block] is None:
                self.names[block] = name
                self.holders[name] = {block: None}

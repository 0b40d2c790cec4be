"""`blocks` is taken for a list: an iterator is empty at the second walk, and no owner is taken off."""

CAUGHT_BY = "test_an_iterator_is_walked_only_once"
MESSAGE = "make a list of it first"


class PrefixPool:
    def free(self, blocks):
        seen = set()
        for block in blocks:
            if not 0 <= block < self.num_blocks or self.ref_count[block] == 0 or block in seen:
                raise BlockError(f"block {block} can't be freed")
            seen.add(block)
        nameless = []
        for block in blocks:
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free_queue[block] = None
                if self.names[block] is None:
                    nameless.append(block)
        for block in reversed(nameless):
            self.free_queue.move_to_end(block, last=False)

"""The table is emptied before the pool gets its blocks, which then belong to nobody: a leak."""

CAUGHT_BY = "test_its_blocks_come_back"
MESSAGE = "is a leak"


class BlockPool:
    def release(self, request):
        request.blocks = []
        request.num_computed_tokens = 0
        self.free(reversed(request.blocks))

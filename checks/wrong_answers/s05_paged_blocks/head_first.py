"""The table is freed from its head, so that its tail is handed out first and a new table runs backwards."""

CAUGHT_BY = "test_the_tail_is_freed_first"
MESSAGE = "free the table from its end"


class BlockPool:
    def release(self, request):
        self.free(request.blocks)
        request.blocks = []
        request.num_computed_tokens = 0

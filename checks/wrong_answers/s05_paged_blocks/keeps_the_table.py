"""The blocks go back and the table still lists them, so that the request reads and frees what others hold by then."""

CAUGHT_BY = "test_its_table_is_empty"
MESSAGE = "a second owner"


class BlockPool:
    def release(self, request):
        self.free(reversed(request.blocks))
        request.num_computed_tokens = 0

"""The blocks go back, but the request still counts its tokens as stored."""

CAUGHT_BY = "test_nothing_of_it_is_stored_any_more"
MESSAGE = "its KV is gone with the blocks"


class BlockPool:
    def release(self, request):
        self.free(reversed(request.blocks))
        request.blocks = []

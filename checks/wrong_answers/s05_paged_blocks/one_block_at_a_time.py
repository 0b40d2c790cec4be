"""Growing gives one block, which is enough for a decode step and not for a prompt."""

CAUGHT_BY = "test_a_prompt_gets_all_its_blocks_at_once"
MESSAGE = "allocate all that is missing"


class BlockPool:
    def grow(self, request, num_tokens):
        if self.missing(request, num_tokens) > 0:
            request.blocks += self.allocate(1)

"""Safe R7: names what the step computed after the finished have left, so that nothing of them stays cached."""

CAUGHT_BY = "test_who_ends_with_the_step_leaves_its_blocks_cached"
MESSAGE = "name first, then let them go"


class UnifiedScheduler:
    def update(self, batch, tokens) -> list:
        finished = append_tokens(batch, tokens)
        for request in finished:
            self.abort(request.id, request.finish_reason)
        if self.safe:
            self.name_computed(batch)
        return finished

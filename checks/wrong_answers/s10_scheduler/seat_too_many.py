"""The seats are compared before the newcomer is counted, so that one more runs than max_num_seqs allows."""

CAUGHT_BY = "test_a_seat_must_be_free"
MESSAGE = "those who run and one more"


class Scheduler:
    def why_wait(self, request, budget):
        running, tokens = len(self.running), request.num_tokens - request.num_computed_tokens
        blocks, usable = self.pool.missing(request, tokens), self.pool.num_free - self.config.watermark_blocks
        held_back = self.meter is not None and self.meter.thrashing and request.num_preemptions == 0
        rules = (
            Wait("eviction", len(self.batch.preempted), 0, "nobody joins in a step that evicts"),
            Wait("seats", running, self.config.max_num_seqs, f"needs a seat, all {running} are taken"),
            Wait("budget", tokens, budget, f"needs {tokens} tokens, {budget} left"),
            Wait("blocks", blocks, usable, f"needs {blocks} blocks, {max(usable, 0)} free"),
            Wait("thrash", running if held_back else 0, 0, "nobody new joins while the pool thrashes"),
        )
        return next((rule for rule in rules if rule.needed > rule.available), None)

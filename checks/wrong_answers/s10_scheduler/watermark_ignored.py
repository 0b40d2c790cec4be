"""Newcomers may fill the pool to its last block, so that those who run evict them again at once."""

CAUGHT_BY = "test_admissions_stay_above_the_watermark"
MESSAGE = "the watermark is ignored"


class Scheduler:
    def why_wait(self, request, budget):
        running, tokens = len(self.running), request.num_tokens - request.num_computed_tokens
        blocks, usable = self.pool.missing(request, tokens), self.pool.num_free
        held_back = self.meter is not None and self.meter.thrashing and request.num_preemptions == 0
        rules = (
            Wait("eviction", len(self.batch.preempted), 0, "nobody joins in a step that evicts"),
            Wait("seats", running + 1, self.config.max_num_seqs, f"needs a seat, all {running} are taken"),
            Wait("budget", tokens, budget, f"needs {tokens} tokens, {budget} left"),
            Wait("blocks", blocks, usable, f"needs {blocks} blocks, {max(usable, 0)} free"),
            Wait("thrash", running if held_back else 0, 0, "nobody new joins while the pool thrashes"),
        )
        return next((rule for rule in rules if rule.needed > rule.available), None)

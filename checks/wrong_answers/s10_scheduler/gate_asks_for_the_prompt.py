"""The gate asks whether the prompt fits, also for a request that was evicted with outputs: re-admission on `prompt` alone."""

CAUGHT_BY = "test_an_evicted_request_needs_room_for_its_outputs_too"
MESSAGE = "the prompt alone is not enough"


class Scheduler:
    def why_wait(self, request, budget):
        running, tokens = len(self.running), len(request.prompt) - request.num_computed_tokens
        blocks, usable = self.pool.missing(request, tokens), self.pool.num_free - self.config.watermark_blocks
        held_back = self.meter is not None and self.meter.thrashing and request.num_preemptions == 0
        rules = (
            Wait("eviction", len(self.batch.preempted), 0, "nobody joins in a step that evicts"),
            Wait("seats", running + 1, self.config.max_num_seqs, f"needs a seat, all {running} are taken"),
            Wait("budget", tokens, budget, f"needs {tokens} tokens, {budget} left"),
            Wait("blocks", blocks, usable, f"needs {blocks} blocks, {max(usable, 0)} free"),
            Wait("thrash", running if held_back else 0, 0, "nobody new joins while the pool thrashes"),
        )
        return next((rule for rule in rules if rule.needed > rule.available), None)

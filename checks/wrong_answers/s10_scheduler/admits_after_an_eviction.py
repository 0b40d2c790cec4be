"""A step that evicts admits somebody as well. Under FCFS it changes nothing, for the head is the victim; with another order the newcomer takes what the victim lost."""

CAUGHT_BY = "test_a_step_that_evicts_admits_nobody_under_shortest_first"
MESSAGE = "a step that evicts admits nobody"


class Scheduler:
    def why_wait(self, request, budget):
        running, tokens = len(self.running), request.num_tokens - request.num_computed_tokens
        blocks, usable = self.pool.missing(request, tokens), self.pool.num_free - self.config.watermark_blocks
        held_back = self.meter is not None and self.meter.thrashing and request.num_preemptions == 0
        rules = (
            Wait("seats", running + 1, self.config.max_num_seqs, f"needs a seat, all {running} are taken"),
            Wait("budget", tokens, budget, f"needs {tokens} tokens, {budget} left"),
            Wait("blocks", blocks, usable, f"needs {blocks} blocks, {max(usable, 0)} free"),
            Wait("thrash", running if held_back else 0, 0, "nobody new joins while the pool thrashes"),
        )
        return next((rule for rule in rules if rule.needed > rule.available), None)

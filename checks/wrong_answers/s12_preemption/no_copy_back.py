"""On its return a request gets new GPU blocks, and its CPU blocks are freed; that somebody has to copy the KV is forgotten."""

CAUGHT_BY = "test_swap_and_recompute_give_the_same_tokens"
MESSAGE = "no copy brings its KV"


class SwappingScheduler:
    def _restore(self, request):
        cpu_blocks = self.cpu_tables.pop(request, None)
        if cpu_blocks is not None and self.cpu_pool is not None:
            request.blocks = self.pool.allocate(len(cpu_blocks))
            self.cpu_pool.free(reversed(cpu_blocks))

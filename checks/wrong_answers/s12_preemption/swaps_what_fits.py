"""With too few CPU blocks the front part of the KV is swapped and the rest is lost. A request can't go on from part of its KV."""

CAUGHT_BY = "test_all_or_nothing"
MESSAGE = "half of its KV is of no use"


class SwappingScheduler:
    def swap_out(self, request):
        stored = request.blocks[: blocks_needed(request.num_computed_tokens, self.config.block_size)]
        if self.cpu_pool is None or not stored or not self.cpu_pool.num_free:
            return False
        stored = stored[: self.cpu_pool.num_free]
        self.cpu_tables[request] = self.cpu_pool.allocate(len(stored))
        self.batch.blocks_to_swap_out += zip(stored, self.cpu_tables[request])
        self.batch.swapped.append(request)
        computed = min(request.num_computed_tokens, len(stored) * self.config.block_size)
        self.pool.release(request)
        request.num_computed_tokens = computed
        return True

"""Nobody asks whether the CPU has room. The day the swap space is full, the pool raises, and the whole engine dies."""

CAUGHT_BY = "test_all_or_nothing"
MESSAGE = "ends the whole engine"


class SwappingScheduler:
    def swap_out(self, request):
        stored = request.blocks[: blocks_needed(request.num_computed_tokens, self.config.block_size)]
        if self.cpu_pool is None or not stored:
            return False
        self.cpu_tables[request] = self.cpu_pool.allocate(len(stored))
        self.batch.blocks_to_swap_out += zip(stored, self.cpu_tables[request])
        self.batch.swapped.append(request)
        computed = request.num_computed_tokens
        self.pool.release(request)
        request.num_computed_tokens = computed
        return True

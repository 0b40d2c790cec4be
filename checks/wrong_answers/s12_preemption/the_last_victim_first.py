"""Who was moved last is listed first. Harmless until the step breaks: then the victims queue again in the wrong order."""

CAUGHT_BY = "test_they_are_listed_as_they_were_moved"
MESSAGE = "in the order of the evictions"


class SwappingScheduler:
    def swap_out(self, request):
        stored = request.blocks[: blocks_needed(request.num_computed_tokens, self.config.block_size)]
        if self.cpu_pool is None or not stored or len(stored) > self.cpu_pool.num_free:
            return False
        self.cpu_tables[request] = self.cpu_pool.allocate(len(stored))
        self.batch.blocks_to_swap_out += zip(stored, self.cpu_tables[request])
        self.batch.swapped.insert(0, request)
        computed = request.num_computed_tokens
        self.pool.release(request)
        request.num_computed_tokens = computed
        return True

"""The blocks are copied in the order of their ids. Coming back, they are taken for the order of the request's tokens."""

CAUGHT_BY = "test_in_an_old_pool_the_kv_comes_back_in_its_place"
MESSAGE = "what was copied out is not what came back"


class SwappingScheduler:
    def swap_out(self, request):
        stored = request.blocks[: blocks_needed(request.num_computed_tokens, self.config.block_size)]
        if self.cpu_pool is None or not stored or len(stored) > self.cpu_pool.num_free:
            return False
        self.cpu_tables[request] = self.cpu_pool.allocate(len(stored))
        self.batch.blocks_to_swap_out += zip(sorted(stored), self.cpu_tables[request])
        self.batch.swapped.append(request)
        computed = request.num_computed_tokens
        self.pool.release(request)
        request.num_computed_tokens = computed
        return True

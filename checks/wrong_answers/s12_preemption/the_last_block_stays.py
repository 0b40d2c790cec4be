"""num_computed_tokens // block_size blocks are moved: the part-filled last block, with the newest tokens, stays behind."""

CAUGHT_BY = "test_its_kv_lies_in_cpu_blocks"
MESSAGE = "as many CPU blocks as hold computed tokens"


class SwappingScheduler:
    def swap_out(self, request):
        stored = request.blocks[: request.num_computed_tokens // self.config.block_size]
        if self.cpu_pool is None or not stored or len(stored) > self.cpu_pool.num_free:
            return False
        self.cpu_tables[request] = self.cpu_pool.allocate(len(stored))
        self.batch.blocks_to_swap_out += zip(stored, self.cpu_tables[request])
        self.batch.swapped.append(request)
        computed = request.num_computed_tokens
        self.pool.release(request)
        request.num_computed_tokens = computed
        return True

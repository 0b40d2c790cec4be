"""`pool.release` sets num_computed_tokens to 0 and it stays there: the KV is copied out, copied back, and computed again."""

CAUGHT_BY = "test_what_it_computed_stays_computed"
MESSAGE = "put the number back"
MYSTERY = "A"


class SwappingScheduler:
    def swap_out(self, request):
        stored = request.blocks[: blocks_needed(request.num_computed_tokens, self.config.block_size)]
        if self.cpu_pool is None or not stored or len(stored) > self.cpu_pool.num_free:
            return False
        self.cpu_tables[request] = self.cpu_pool.allocate(len(stored))
        self.batch.blocks_to_swap_out += zip(stored, self.cpu_tables[request])
        self.batch.swapped.append(request)
        self.pool.release(request)
        return True

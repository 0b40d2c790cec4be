"""The GPU blocks are released first, and the copies are listed from a table that is empty by then: nothing is ever copied."""

CAUGHT_BY = "test_every_copy_is_listed_in_the_order_of_its_table"
MESSAGE = "(GPU block, CPU block) in the table's order"


class SwappingScheduler:
    def swap_out(self, request):
        needed = blocks_needed(request.num_computed_tokens, self.config.block_size)
        if self.cpu_pool is None or not needed or needed > self.cpu_pool.num_free:
            return False
        self.cpu_tables[request] = self.cpu_pool.allocate(needed)
        self.batch.swapped.append(request)
        computed = request.num_computed_tokens
        self.pool.release(request)
        request.num_computed_tokens = computed
        self.batch.blocks_to_swap_out += zip(request.blocks, self.cpu_tables[request])
        return True

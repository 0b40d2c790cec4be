"""A request that returns keeps its CPU blocks. The swap space fills up, and after a while every victim recomputes."""

CAUGHT_BY = "test_every_copy_back_is_listed_and_the_cpu_blocks_are_free"
MESSAGE = "they go back when the request returns"
MYSTERY = "B"


class SwappingScheduler:
    def _restore(self, request):
        cpu_blocks = self.cpu_tables.pop(request, None)
        if cpu_blocks is not None:
            request.blocks = self.pool.allocate(len(cpu_blocks))
            self.batch.blocks_to_swap_in += zip(cpu_blocks, request.blocks)

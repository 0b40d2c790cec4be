"""s05 adds paged KV memory: a pool of equal blocks, handed out one at a time.

The shape of the file: `blocks_needed`, then `BlockPool`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kit.config import positive
from kit.errors import BlockError, NoFreeBlocks
from kit.request import Request


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Blocks that hold the KV of `num_tokens`: ceil(num_tokens / block_size), and 0 for 0."""
    return -(-num_tokens // block_size)


class BlockPool:
    """Physical KV blocks 0 … num_blocks - 1, each with room for `block_size` tokens (Kwon et al., SOSP 2023)."""

    def __init__(self, num_blocks: int, block_size: int = 16):
        self.num_blocks = positive("num_blocks", num_blocks)
        self.block_size = positive("block_size", block_size)
        self.free_blocks = list(range(num_blocks - 1, -1, -1))  # a stack: pop() hands out block 0 first
        self.num_free = num_blocks  # len(free_blocks), kept beside it: a scheduler asks once a request and step
        self._is_free = bytearray(b"\1" * num_blocks)

    def allocate(self, num_blocks: int) -> list[int]:
        """Hand out `num_blocks` blocks, or raise NoFreeBlocks and hand out none."""
        if num_blocks > len(self.free_blocks):
            raise NoFreeBlocks(f"asked for {num_blocks} KV blocks, {len(self.free_blocks)} of {self.num_blocks} are free")
        blocks = [self.free_blocks.pop() for _ in range(num_blocks)]
        for block in blocks:
            self._is_free[block] = False
        self.num_free -= len(blocks)
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Take blocks back. BlockError for a block that is free already or was never in this pool."""
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise BlockError(f"block {block} is not of this pool, which has blocks 0 to {self.num_blocks - 1}")
            if self._is_free[block]:
                raise BlockError(f"block {block} is freed twice: two requests believe that they own it")
            self._is_free[block] = True
            self.free_blocks.append(block)
            self.num_free += 1

    def missing(self, request: Request, num_tokens: int) -> int:
        """Blocks that a request lacks to store its next `num_tokens` tokens."""
        return -(-(request.num_computed_tokens + num_tokens) // self.block_size) - len(request.blocks)

    def grow(self, request: Request, num_tokens: int) -> None:
        """Give a request the blocks that its next `num_tokens` tokens need, or raise NoFreeBlocks and give none."""
        missing = self.missing(request, num_tokens)
        if missing > 0:
            request.blocks += self.allocate(missing)

    def release(self, request: Request) -> None:
        """Take all blocks of a request back, the tail first: nothing of it is stored any more."""
        self.free(reversed(request.blocks))
        request.blocks = []
        request.num_computed_tokens = 0

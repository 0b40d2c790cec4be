"""s05 adds paged KV memory: a pool of equal blocks, handed out one at a time, and a block table for each request.

The shape of the file: `blocks_needed`, then `BlockPool`, then `slot`, which reads a block table, then `main`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kit.config import positive
from kit.errors import BlockError, NoFreeBlocks
from kit.exercise import exercise
from kit.request import Request


@exercise
def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Blocks that hold the KV of `num_tokens` tokens. Roughly 1 line.

    Returns num_tokens / block_size rounded up, in whole numbers: a float is exact only up to 2**53. 0 tokens need 0 blocks,
    a full block needs no second one. num_tokens: at least 0. block_size: tokens in a block, at least 1.
    """
    raise NotImplementedError


class BlockPool:
    """Physical KV blocks 0 … num_blocks - 1, each with room for `block_size` tokens (Kwon et al., SOSP 2023).

    It holds no KV, only who may write where. A request's block table is its `blocks`: physical ids, in the order of its
    tokens. Between two calls `num_free == len(free_blocks)`, and `is_free[block]` is 1 for exactly the blocks in it.
    """

    def __init__(self, num_blocks: int, block_size: int = 16):
        self.num_blocks = positive("num_blocks", num_blocks)
        self.block_size = positive("block_size", block_size)
        self.free_blocks = list(range(num_blocks - 1, -1, -1))  # a stack: pop() hands out block 0 first
        self.num_free = num_blocks  # len(free_blocks), kept beside it: a scheduler asks once a request and step
        self.is_free = bytearray(b"\1" * num_blocks)  # the same by block: no search through the stack

    @exercise
    def allocate(self, num_blocks: int) -> list[int]:
        """Hand out `num_blocks` blocks, at least 0: all of them or none. Roughly 7 lines.

        1. If fewer are free, raise NoFreeBlocks with both numbers in its text, and change nothing.
        2. Pop that many off the top of `free_blocks`, the end of the list, one after another.
        3. Note it in `is_free` and `num_free`.
        Returns the blocks in the order in which they were popped.
        """
        raise NotImplementedError

    @exercise
    def free(self, blocks: Iterable[int]) -> None:
        """Take blocks back: all of them or none. Roughly 12 lines.

        1. Look at every block before you change anything. Raise BlockError, with the block's number in its text, for one
           that was never in this pool (not 0 … num_blocks - 1), for one that is free already, and for one that stands in
           `blocks` twice.
        2. Put them on top of `free_blocks`, in the order given: the last one is handed out first.
        3. Note it in `is_free` and `num_free`.
        `blocks` may be an iterator, which can be walked only once.
        """
        raise NotImplementedError

    @exercise
    def missing(self, request: Request, num_tokens: int) -> int:
        """Blocks that a request lacks to store its next `num_tokens` tokens. Roughly 1 line.

        It has stored `num_computed_tokens` and will then have stored `num_tokens` more: the blocks for both together, less
        those in its table. 0, or less than 0, if its table has room for them.
        """
        raise NotImplementedError

    @exercise
    def grow(self, request: Request, num_tokens: int) -> None:
        """Give a request the blocks that its next `num_tokens` tokens need, at the end of its table. Roughly 3 lines.

        If it lacks none, nothing changes: a table never shrinks here. Storing the tokens is not this method's job, so
        `num_computed_tokens` stays. Raises NoFreeBlocks, and gives it none, if the pool has too few.
        """
        raise NotImplementedError

    @exercise
    def release(self, request: Request) -> None:
        """Take all blocks of a request back: nothing of it is stored any more. Roughly 3 lines.

        1. Free its blocks, the last one of its table first.
        2. Leave it with an empty table, and with `num_computed_tokens` 0. Released again, it gives back nothing.
        """
        raise NotImplementedError


@exercise
def slot(blocks: Sequence[int], position: int, block_size: int) -> tuple[int, int]:
    """Extension. Where the KV of the token at `position` lies: (physical block, offset in it). Roughly 4 lines.

    blocks: a block table. position: of the token in its request, counted from 0, prompt and output in one row.
    Raises BlockError, with the position in its text, if the table has no place for it, or if it is negative.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    from kit import paging

    return paging.main(argv, BlockPool, blocks_needed, slot)


if __name__ == "__main__":
    raise SystemExit(main())

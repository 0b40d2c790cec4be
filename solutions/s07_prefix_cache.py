"""s07 adds memory that remembers: a KV block is shared by everybody whose prompt begins with the same tokens.

The shape of the file: names for blocks (`block_hash`, `hash_chain`), `PrefixPool`, then `serve`, which is one prompt's way
through it, and `main`.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kit.config import positive
from kit.errors import BlockError, NoFreeBlocks
from kit.exercise import exercise
from s05_paged_blocks import BlockPool, blocks_needed


def chain_start(salt: str = "") -> bytes:
    """What stands in place of a parent before the first block. A tenant with a salt of its own has chains of its own."""
    return hashlib.sha256(salt.encode()).digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block: SHA-256 over the name of the block before it and its own token ids.

    Eight bytes a token, so that no two lists of tokens look alike: as text, 1 23 and 12 3 would.
    """
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}q", *tokens)).digest()


@exercise
def hash_chain(tokens: Sequence[int], block_size: int, salt: str = "", known: Sequence[bytes] = ()) -> list[bytes]:
    """The names of all full blocks of a request, in order. Roughly 5 lines.

    tokens: prompt and outputs so far, as token ids. A last block that isn't full yet has no name.
    salt: goes into `chain_start`, the parent of the first block, and through it into every name of the chain.
    known: names of the first blocks, if you have them already; only the later ones are computed.

    Each name is `block_hash(name of the block before, the block's own tokens)`.
    """
    chain = list(known)
    for start in range(len(chain) * block_size, len(tokens) - block_size + 1, block_size):
        parent = chain[-1] if chain else chain_start(salt)
        chain.append(block_hash(parent, tokens[start : start + block_size]))
    return chain


class PrefixPool(BlockPool):
    """A BlockPool whose blocks can have several owners, and keep their KV and name after the last one has left.

    free_queue: the free blocks in the order in which they will be taken, front first. A free block may be cached still.
    ref_count: owners of each block; 0 means that it stands in `free_queue`, and only then.
    names: the hash of each block, None where it has none. holders: hash -> the blocks that have it, first registered first.
    """

    def __init__(self, num_blocks: int, block_size: int = 16):
        self.num_blocks = positive("num_blocks", num_blocks)
        self.block_size = positive("block_size", block_size)
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.ref_count = [0] * num_blocks
        self.names: list[bytes | None] = [None] * num_blocks
        self.holders: dict[bytes, dict[int, None]] = {}

    @property
    def num_free(self) -> int:  # type: ignore[override]
        """Blocks without an owner, cached or not: each counts once."""
        return len(self.free_queue)

    @property
    def free_blocks(self) -> list[int]:  # type: ignore[override]
        """The free blocks in the order in which they will be taken."""
        return list(self.free_queue)

    @exercise
    def register(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Give blocks their names, so that `lookup` finds them. Roughly 6 lines.

        blocks: a request's block table. hashes: the names of its first blocks, from `hash_chain`; blocks beyond them have
        no name yet. A block that has its name already, because it was a hit, is left as it is.

        Note the name in `names` and the block in `holders`, behind the others of that name: equal blocks are not merged,
        for a block table that somebody reads must not change. Whoever registers a block says that its KV is written, or
        will be before the step ends; if that turns out wrong, `forget` it.
        """
        for block, name in zip(blocks, hashes):
            if self.names[block] is None:
                self.names[block] = name
                self.holders.setdefault(name, {})[block] = None

    def forget(self, blocks: Iterable[int]) -> None:
        """Take the names of blocks away: their KV is about to be overwritten, or was never written."""
        for block in blocks:
            name, self.names[block] = self.names[block], None
            if name is not None:
                del self.holders[name][block]
                if not self.holders[name]:
                    del self.holders[name]

    @exercise
    def lookup(self, hashes: Sequence[bytes], num_tokens: int) -> list[int]:
        """The longest run of cached blocks from the start of a request; changes nothing. Roughly 6 lines.

        hashes: the request's names, from `hash_chain`. num_tokens: all that the request knows, prompt and outputs.

        Look at no more than (num_tokens - 1) // block_size blocks: one token at least must be computed, or there is
        nothing to sample from. Stop at the first name that nobody holds. Of several holders take the one registered first.
        """
        hit: list[int] = []
        for name in hashes[: (num_tokens - 1) // self.block_size]:
            if name not in self.holders:
                break
            hit.append(next(iter(self.holders[name])))
        return hit

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody owns, so that they still stand in the free queue."""
        return sum(self.ref_count[block] == 0 for block in blocks)

    def touch(self, blocks: Iterable[int]) -> None:
        """One owner more for each block. A free one leaves the free queue: nobody may take it now."""
        for block in blocks:
            if self.ref_count[block] == 0:
                del self.free_queue[block]
            self.ref_count[block] += 1

    @exercise
    def allocate(self, num_blocks: int) -> list[int]:
        """Hand out `num_blocks` blocks from the front of the free queue. Roughly 8 lines.

        NoFreeBlocks if there are fewer, and then nothing is handed out. Each block gets its first owner and loses its
        name (`forget`), if it has one: its new owner will write over the KV.
        """
        if num_blocks > self.num_free:
            raise NoFreeBlocks(f"asked for {num_blocks} KV blocks, {self.num_free} of {self.num_blocks} are free")
        blocks = [self.free_queue.popitem(last=False)[0] for _ in range(num_blocks)]
        self.forget(blocks)
        for block in blocks:
            self.ref_count[block] = 1
        return blocks

    @exercise
    def claim(self, hit: Sequence[int], num_new: int) -> list[int]:
        """A block table: the blocks of a hit, then `num_new` fresh ones. All or nothing. Roughly 5 lines.

        hit: from `lookup`. Those of them that are `idle` stand in the free queue themselves, so they can't be handed out
        as fresh ones too: `num_new` and they together must be free, or NoFreeBlocks is raised and nothing has changed.
        Touch the hit first, then allocate: the other way round, the front of the queue may be the hit.
        """
        needed = num_new + self.idle(hit)
        if needed > self.num_free:
            raise NoFreeBlocks(f"{num_new} new blocks and {needed - num_new} idle hits needed, {self.num_free} are free")
        self.touch(hit)
        return [*hit, *self.allocate(num_new)]

    @exercise
    def free(self, blocks: Iterable[int]) -> None:
        """One owner less for each block; blocks without an owner go back. Roughly 14 lines.

        blocks: in the order in which they are to be taken again, a request's tail first (`release` does that). It may be an
        iterator, which can be walked only once.

        1. Look at every block before you change anything. BlockError for one that is not of this pool, for one that nobody
           owns, and for one that stands in `blocks` twice.
        2. A block that loses its last owner is free. With a name it goes to the back of the free queue: it may be hit, and
           whatever was freed before it is older. Without one it is good for nothing but to be taken: to the front.
        3. Those that go to the front keep their order: the first of them is the very first to be taken.
        """
        blocks = list(blocks)
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise BlockError(f"block {block} is not of this pool, which has blocks 0 to {self.num_blocks - 1}")
            if self.ref_count[block] == 0:
                raise BlockError(f"block {block} is freed once too often: nobody owns it")
        if len(set(blocks)) < len(blocks):
            raise BlockError(f"a block stands twice among those to be freed: {blocks}")
        nameless = []
        for block in blocks:
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free_queue[block] = None
                if self.names[block] is None:
                    nameless.append(block)
        for block in reversed(nameless):
            self.free_queue.move_to_end(block, last=False)


def serve(pool: PrefixPool, hashes: Sequence[bytes], num_tokens: int) -> tuple[int, int]:
    """Take one prompt through the pool as if it were alone: look up, claim, compute, register, free the tail first.

    Returns (blocks hit, tokens computed).
    """
    hit = pool.lookup(hashes, num_tokens)
    blocks = pool.claim(hit, blocks_needed(num_tokens, pool.block_size) - len(hit))
    pool.register(blocks, hashes)
    pool.free(reversed(blocks))
    return len(hit), num_tokens - len(hit) * pool.block_size


def main(argv: list[str] | None = None) -> int:
    from kit import prefixes

    return prefixes.main(argv, PrefixPool, hash_chain, serve)


if __name__ == "__main__":
    raise SystemExit(main())

"""s04 adds the memory of many requests, the old way: each gets one contiguous piece of the KV cache for its whole life.

The shape of the file: `reserve`, how large the piece is; `FirstFit` and `Buddy`, where it lies; `shares`, what a memory full
of such pieces holds; `main`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kit.config import positive
from kit.errors import BadConfig, BlockError
from kit.exercise import exercise

POLICIES = ("max", "pow2", "oracle")


@dataclass(slots=True)
class Reservation:
    """A running request and its piece of memory. All lengths are in tokens, and a token takes one slot.

    output: tokens that it will have made when it ends, which only an oracle knows; made: those that it has made so far.
    size, start: its piece, slots start … start + size - 1.
    """

    prompt: int
    output: int
    size: int
    start: int
    made: float = 0


class Shares(NamedTuple):
    """What the slots of a memory are, as shares that add up to 1.

    tokens: hold a token. reserved: wait for a token that will come. internal: belong to a request that will never use them.
    external: belong to nobody.
    """

    tokens: float
    reserved: float
    internal: float
    external: float


@exercise
def reserve(policy: str, prompt: int, output: int, max_len: int) -> int:
    """Slots that a request is given when it starts. Roughly 7 lines.

    prompt, output: its tokens, output at least 1; the output's length is used by the policies that are told it. max_len: the model's context.

    "max": `max_len`, for any answer might become that long.
    "pow2": the prompt and the smallest power of two that holds the output, but never more than `max_len`.
    "oracle": exactly the prompt and the output. Nobody can know that; it is the best that a contiguous piece can do.

    Raises BadConfig for another policy, and if prompt and output together exceed `max_len`.
    """
    raise NotImplementedError


class FirstFit:
    """A memory of `num_slots` that hands out contiguous pieces, from the first hole that is large enough."""

    def __init__(self, num_slots: int):
        self.num_slots = positive("num_slots", num_slots)
        self.holes = [(0, num_slots)]  # (start, length) of each hole, by start; no two of them touch
        self.used: dict[int, int] = {}  # start of each piece -> its length

    @property
    def num_free(self) -> int:
        return sum(length for _, length in self.holes)

    @exercise
    def allocate(self, size: int) -> int | None:
        """Hand out `size` slots in a row; returns where they start, or None if no hole is that large. Roughly 10 lines.

        1. Take the first hole, by start, that is at least as long as `size`. An exact fit is enough.
        2. The piece is the beginning of the hole. What is left stays a hole, at the same place in `holes`; of an exact fit
           nothing is left.
        3. Write the piece down in `used`.
        """
        raise NotImplementedError

    @exercise
    def free(self, start: int) -> None:
        """Take a piece back. Roughly 10 lines.

        1. BlockError if no piece starts there: it was freed before, or never handed out.
        2. It becomes a hole, in its place by start. If it touches the hole before or the hole behind it, or both, they
           become one, for else a long piece could lie free and not be found.
        """
        raise NotImplementedError


class Buddy:
    """The same, with pieces of 1, 2, 4, 8 … slots only: a piece is halved until it is just large enough, and a freed half
    joins its other half, its buddy, if that is free too (Knowlton, 1965). Quick, and every size is rounded up."""

    def __init__(self, num_slots: int):
        self.num_slots = positive("num_slots", num_slots)
        self.used: dict[int, int] = {}  # start of each piece -> the exponent of its length
        self.holes: dict[int, set[int]] = {k: set() for k in range(num_slots.bit_length())}  # exponent -> starts
        start = 0
        for k in reversed(self.holes):
            if num_slots >> k & 1:
                self.holes[k].add(start)
                start += 1 << k

    @property
    def num_free(self) -> int:
        return sum(len(starts) << k for k, starts in self.holes.items())

    def allocate(self, size: int) -> int | None:
        wanted = (size - 1).bit_length()
        found = next((k for k in self.holes if k >= wanted and self.holes[k]), None)
        if found is None:
            return None
        start = min(self.holes[found])
        self.holes[found].remove(start)
        for k in range(wanted, found):
            self.holes[k].add(start + (1 << k))
        self.used[start] = wanted
        return start

    def free(self, start: int) -> None:
        if start not in self.used:
            raise BlockError(f"no piece starts at slot {start}: it was freed before, or never handed out")
        k = self.used.pop(start)
        while (buddy := start ^ (1 << k)) in self.holes.get(k, ()):
            self.holes[k].remove(buddy)
            start, k = min(start, buddy), k + 1
        self.holes[k].add(start)


@exercise
def shares(running: Sequence[Reservation], num_slots: int) -> Shares:
    """What a memory of `num_slots` holds while these requests run. Roughly 6 lines.

    1. tokens: the prompts, and what has been made so far.
    2. reserved: what is still to be made. These slots are taken, and of use to nobody today.
    3. internal: what was given beyond prompt and output.
    4. external: all that no request was given; also what an allocator rounded up to, which it gave to nobody.

    Returns each as a share of `num_slots`.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    import sys

    from kit import kv_memory_experiments

    return kv_memory_experiments.main(argv, sys.modules[__name__])


if __name__ == "__main__":
    raise SystemExit(main())

"""s06 adds paged attention: a request's keys and values lie wherever its blocks lie, and a step is one flat list of tokens.

The shape of the file: `slot_mapping`, `write_kv` and `gather`, from a token to its place and back; `FlatBatch`, `flatten` and
`paged_attention`, a mixed batch in one pass; `PagedRunner`, the model behind the engine. Then `main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from kit.config import positive
from kit.errors import BlockError
from kit.exercise import exercise
from kit.runner import BatchLike
from kit.tinylm import Array, TinyLM, np  # np is NumPy; without it TinyLM.load says what to install
from s02_kv_cache import attend
from s03_step_cost import A100_LLAMA3_8B, CostModel


@exercise
def slot_mapping(blocks: Sequence[int], start: int, n: int, block_size: int) -> list[int]:
    """Where the tokens start, start + 1, … start + n - 1 of one request are stored. Roughly 6 lines.

    blocks: its block table, physical block ids in the order of its tokens; any order of ids. A slot is one place for one token,
    numbered through the pool: block b has the slots b * block_size to b * block_size + block_size - 1.

    Token p of the request stands in entry p // block_size of the table, at place p % block_size of that block.
    Raises BlockError, with both numbers, if the table ends before the last of these tokens: a slot read from behind it would
    be another request's. Returns n slots.
    """
    raise NotImplementedError


@exercise
def write_kv(cache: Array, slots: Sequence[int], new: Array) -> None:
    """Store what one layer made of n tokens, the keys or the values, each at its slot. Roughly 2 lines.

    cache: [num_blocks, block_size, num_kv_heads, head_dim], changed in place. slots: n slots, in any order.
    new: [n, num_kv_heads, head_dim]; new[i] goes to slots[i]. Slot s is place s % block_size of block s // block_size.

    It does not know whose tokens they are, and need not: one call stores those of the whole batch.
    """
    raise NotImplementedError


@exercise
def gather(cache: Array, blocks: Sequence[int], num_tokens: int) -> Array:
    """The keys (or values) of one request in the order of its tokens, read through its block table. Roughly 2 lines.

    cache: [num_blocks, block_size, num_kv_heads, head_dim]. Returns [num_tokens, num_kv_heads, head_dim], contiguous: what s02's
    cache would hold. The table may have room for more than num_tokens; what lies there is nobody's, or was somebody's.
    """
    raise NotImplementedError


@dataclass(slots=True)
class FlatBatch:
    """A step as the model sees it: T tokens of R requests in one list, without padding. The names are vLLM's.

    tokens, positions, slot_mapping: T each: its id, its place in its own request, the slot its keys and values go to.
    query_start_loc: R + 1 numbers from 0 to T: request i has the tokens query_start_loc[i] up to query_start_loc[i + 1].
    seq_lens: R: how many tokens of each request are stored once this step has written its own.
    block_tables: R lists of block ids.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slot_mapping: list[int] = field(default_factory=list)
    query_start_loc: list[int] = field(default_factory=lambda: [0])
    seq_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)


@exercise
def flatten(batch: BatchLike, block_size: int) -> FlatBatch:
    """Lay the requests of a batch one behind the other, in batch order. Roughly 11 lines.

    batch.tokens: request -> n, how many of its tokens this step computes. The scheduler has moved `num_computed_tokens` already:
    the step computes the n tokens *before* it, positions num_computed_tokens - n up to num_computed_tokens.
    A request knows `[*request.prompt, *request.output]`: one that was evicted computes its own output again, too.

    Fill all six lists of a FlatBatch. Raises BlockError (from `slot_mapping`) for a request without the blocks it needs.
    """
    raise NotImplementedError


@exercise
def paged_attention(q: Array, k_cache: Array, v_cache: Array, flat: FlatBatch) -> Array:
    """Attention of one layer for a mixed batch: each request's queries over its own keys and values. Roughly 7 lines.

    q: [T, num_heads, head_dim], the queries of all tokens of the step, as `flat` lists them; their keys and values are stored.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]. Returns [T, num_heads, head_dim].

    For each request: its slice of q, between two neighbours in `query_start_loc`; its keys and values, `gather`ed by its block
    table up to its `seq_lens`; s02's `attend(q, k, v)`, which knows the mask and the shared heads, for whole prompts, pieces of
    one and single tokens alike. The results go to the same slice.
    """
    raise NotImplementedError


class PagedRunner:
    """TinyLM behind the engine: executes a Batch (kit.runner.Runner) with its KV in the blocks that the scheduler handed out.

    model: a loaded TinyLM. num_blocks, block_size: those of the scheduler's pool. cost: what a step is priced with; the tokens
    are real, the nanoseconds are modelled and stand for another machine.
    k, v: [num_layers, num_blocks, block_size, num_kv_heads, head_dim]. Nothing else is kept between steps.
    """

    def __init__(self, model: TinyLM, num_blocks: int, block_size: int = 16, cost: CostModel = A100_LLAMA3_8B):
        c = model.config
        self.model, self.cost, self.block_size = model, cost, positive("block_size", block_size)
        shape = (c.num_layers, positive("num_blocks", num_blocks), block_size, c.num_kv_heads, c.head_dim)
        self.k, self.v = np.zeros(shape, model.dtype), np.zeros(shape, model.dtype)

    def attention(self, flat: FlatBatch, layer: int, q: Array, k: Array, v: Array) -> Array:
        """What the model calls once a layer: first store the keys and values of all tokens, then attend."""
        write_kv(self.k[layer], flat.slot_mapping, k)
        write_kv(self.v[layer], flat.slot_mapping, v)
        return paged_attention(q, self.k[layer], self.v[layer], flat)

    @exercise
    def execute(self, batch: BatchLike) -> tuple[Mapping[str, list[int]], int]:
        """One step of the engine: (request id -> [its new token], for those that sample; nanoseconds). Roughly 9 lines.

        1. `flatten` the batch.
        2. A request samples if it has caught up, num_computed_tokens == num_tokens; a piece of a prompt that is not the last
           samples nothing. Its scores stand in the row of its *last* token of this step.
        3. `self.model.forward(tokens, positions, attention, rows)` computes all tokens in one pass and returns the scores of the
           `rows` that you ask for. attention: `partial(self.attention, flat)`.
        4. The new token of a row is the most probable one, the smallest id among equals: `int(row.argmax())`.
           Return it only; the engine appends it.
        5. The time: `self.cost.step_ns(tokens in the step, sum of seq_lens)`.
        """
        raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    from kit import stories

    return stories.paged(argv, PagedRunner, flatten, slot_mapping)


if __name__ == "__main__":
    raise SystemExit(main())

"""s18 adds the rest of attention on the GPU: storing keys and values, and one kernel for prefill chunks and decodes together.

The shape of the file: `write_kernel` and `write_kv`; three pieces more, and `attention_kernel`, which is s17's with many queries a
request; `paged_attention`, which launches it; `tensors_of` and `TorchRunner`, the model behind the engine on tensors; `main`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kit.config import positive
from kit.exercise import exercise
from kit.gpu import DEVICE, jit, need, tl, torch, triton
from kit.runner import BatchLike
from s03_step_cost import A100_LLAMA3_8B, CostModel
from s06_paged_attention import FlatBatch, flatten
from s17_triton_decode import absorb, check, launch_options, slots_of, tile_for

Tensor = Any  # torch.Tensor, where there is torch


@exercise
@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """One program for a token: store its key and value of all KV heads at its slot. Roughly 7 lines.

    k_cache, v_cache: pointers; slot s begins at s * WIDTH. k, v: token t begins at t * WIDTH, contiguous. WIDTH: num_kv_heads *
    head_dim; LANES: WIDTH up to a power of two, as `tl.arange` wants it: mask the lanes behind WIDTH.

    The program's token is `tl.program_id(0)`. Load its slot; -1 means that this token is not to be stored (padding). Make slot and
    token int64 before you multiply them (the tests look at the slot's: no step has so many tokens that the token's would show).
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        lanes = tl.arange(0, LANES)
        there = lanes < WIDTH
        tl.store(k_cache + slot * WIDTH + lanes, tl.load(k + token * WIDTH + lanes, mask=there), mask=there)
        tl.store(v_cache + slot * WIDTH + lanes, tl.load(v + token * WIDTH + lanes, mask=there), mask=there)


def write_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
    """Store the keys and values of a step's tokens. ValueError for tensors that don't go together.

    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], changed in place. k, v: [tokens, num_kv_heads, head_dim].
    slot_mapping: [tokens] int32 or int64; -1 skips the token. No slot may be named twice: who would be last?
    """
    need("s18")
    if not (k_cache.dim() == 4 and k.dim() == 3 and slot_mapping.dim() == 1):
        raise ValueError(
            f"a cache has 4 dimensions, k 3 and slot_mapping 1; these have {k_cache.dim()}, {k.dim()} and {slot_mapping.dim()}"
        )
    if (
        k.shape != v.shape
        or k.shape[1:] != k_cache.shape[2:]
        or k_cache.shape != v_cache.shape
        or len(k) != len(slot_mapping)
    ):
        raise ValueError(
            f"k {tuple(k.shape)}, v {tuple(v.shape)}, caches {tuple(k_cache.shape)} and {tuple(v_cache.shape)}, "
            f"{len(slot_mapping)} slots don't go together"
        )
    for name, tensor in {"v_cache": v_cache, "k": k, "v": v, "slot_mapping": slot_mapping}.items():
        if tensor.device != k_cache.device:
            raise ValueError(f"k_cache is on {k_cache.device} and {name} on {tensor.device}: move one of them")
        if name != "slot_mapping" and tensor.dtype != k_cache.dtype:
            raise ValueError(f"k_cache is {k_cache.dtype} and {name} {tensor.dtype}: they must be alike")
    if slot_mapping.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"slot_mapping is {slot_mapping.dtype}: it must be int32 or int64")
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("a cache is not contiguous: a copy of it would be written, and the cache not")
    if not len(k):
        return
    low, high, num_slots = int(slot_mapping.min()), int(slot_mapping.max()), k_cache.shape[0] * k_cache.shape[1]
    if low < -1 or high >= num_slots:
        raise ValueError(f"slots from {low} to {high}: the cache has 0 to {num_slots - 1}, and -1 skips a token")
    width = k.shape[1] * k.shape[2]
    lanes = triton.next_power_of_2(width)
    slots = slot_mapping.contiguous()
    write_kernel[(len(k),)](k_cache, v_cache, k.contiguous(), v.contiguous(), slots, WIDTH=width, LANES=lanes)


# Which program computes what. A tile is a program's queries, at most QUERIES of one request; each of them has GROUP heads that
# share a KV head, and all of these are the rows of its dots.


def num_tiles(num_tokens: int, num_seqs: int, queries: int) -> int:
    """Numbers to launch: at least as many as tiles are needed, found without a look at who has how many queries.

    Each request may leave one tile part-filled, so num_tokens // queries + num_seqs are enough. Some stay without work.
    """
    return num_tokens // queries + num_seqs


@exercise
@jit
def request_of(query_start_loc, number, num_seqs, QUERIES: tl.constexpr):
    """Whose tile a number is. Roughly 8 lines.

    query_start_loc: pointer to num_seqs + 1 ints, as in s06's FlatBatch. number: the program's `program_id(0)`, below
    `num_tiles(…)`.
    Request i begins with number query_start_loc[i] // QUERIES + i: each request before it may leave one tile part-filled, so two
    requests never share a number, though some numbers have no work. These beginnings rise with i: find the last request whose
    beginning is not beyond `number`, by bisection between 0 and num_seqs. Returns i.
    Bisect with `while`: the interpreter takes a `break`, the compiler for a GPU does not.
    """
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) // QUERIES + middle <= number:
            low = middle + 1
        else:
            high = middle
    return low - 1


@exercise
@jit
def keys_for(stored_before, first_query, num_queries, QUERIES: tl.constexpr, WINDOW: tl.constexpr):
    """Which keys a tile needs at all: (first, end), positions in its request, `end` not included. Roughly 4 lines.

    stored_before: tokens of the request that earlier steps have stored. first_query: the tile's first query, counted from 0 within
    the step's num_queries of this request; query j stands at position stored_before + j.

    The tile's last query is the QUERIES-th from first_query, or the request's last one. Nobody in the tile sees beyond it.
    Without a WINDOW everybody sees from 0 on; with one the first query begins earliest, WINDOW - 1 before its own position.
    """
    end = stored_before + tl.minimum(first_query + QUERIES, num_queries)
    first = tl.maximum(stored_before + first_query - WINDOW + 1, 0) if WINDOW > 0 else 0
    return first, end


@exercise
@jit
def causal(key_positions, query_positions, WINDOW: tl.constexpr):
    """Which keys each query sees: [ROWS, TILE] of bool. Roughly 3 lines.

    key_positions: [TILE]. query_positions: [ROWS]; both count from the start of the request. A query sees itself and what is before
    it; with a WINDOW above 0 only the last WINDOW of those, itself among them. `x[None, :]` and `x[:, None]` make a row and a column.
    """
    seen = key_positions[None, :] <= query_positions[:, None]
    if WINDOW > 0:
        seen = seen & (key_positions[None, :] > query_positions[:, None] - WINDOW)
    return seen


@jit
def attention_kernel(
    out,
    q,
    k_cache,
    v_cache,
    block_tables,
    query_start_loc,
    seq_lens,
    scale,
    table_width,
    num_seqs,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    QUERIES: tl.constexpr,  # ROWS // GROUP: queries of a tile
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One program for QUERIES tokens of one request and a KV head. A decode is a request with one query."""
    number, kv_head = tl.program_id(0), tl.program_id(1)
    request = request_of(query_start_loc, number, num_seqs, QUERIES)
    begin = tl.load(query_start_loc + request)
    num_queries = tl.load(query_start_loc + request + 1) - begin
    first_query = (number - begin // QUERIES - request) * QUERIES
    if first_query >= num_queries:
        return  # a number that no tile has

    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)
    query = first_query + rows // GROUP
    real = (rows < QUERIES * GROUP) & (query < num_queries)
    row = (begin + query).to(tl.int64) * NUM_KV_HEADS * GROUP + kv_head * GROUP + rows % GROUP
    queries = tl.load(q + row[:, None] * HEAD_DIM + dims[None, :], mask=real[:, None], other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)

    stored_before = tl.load(seq_lens + request) - num_queries
    first, end = keys_for(stored_before, first_query, num_queries, QUERIES, WINDOW)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for tile in range(first // TILE, tl.cdiv(end, TILE)):
        positions = tile * TILE + tl.arange(0, TILE)
        there = positions < end
        slots = slots_of(block_tables + request.to(tl.int64) * table_width, positions, there, BLOCK_SIZE)
        place = (slots * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(k_cache + place, mask=there[:, None], other=0.0)
        v = tl.load(v_cache + place, mask=there[:, None], other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale
        seen = causal(positions, stored_before + query, WINDOW) & there[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        peak, total, acc = absorb(scores, v, peak, total, acc, PRECISION)

    some = tl.where(total > 0, total, 1.0)
    tl.store(
        out + row[:, None] * HEAD_DIM + dims[None, :], (acc / some[:, None]).to(out.dtype.element_ty), mask=real[:, None]
    )


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    window: int = 0,
) -> Tensor:
    """Attention of a mixed batch: each request's new tokens over all that it has stored, theirs included.

    q: [tokens, num_heads, head_dim], the requests one behind the other. query_start_loc: [num_seqs + 1] int32, where each begins.
    The others as in s17. Returns [tokens, num_heads, head_dim] in q's dtype. ValueError for tensors that don't go together.
    """
    need("s18")
    check(q, k_cache, v_cache, block_tables, seq_lens)
    positive("window", window, 0)
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    num_seqs = len(seq_lens)
    if (
        query_start_loc.dtype != torch.int32
        or query_start_loc.device != q.device
        or query_start_loc.shape != (num_seqs + 1,)
        or not query_start_loc.is_contiguous()
    ):
        raise ValueError(
            f"query_start_loc must be {num_seqs + 1} contiguous int32 on {q.device}, one more than there are requests"
        )
    counts = query_start_loc.diff()
    if int(query_start_loc[0]) != 0 or int(query_start_loc[-1]) != num_tokens or (num_seqs and int(counts.min()) < 0):
        raise ValueError(f"query_start_loc must rise from 0 to {num_tokens}, the number of queries")
    if num_seqs and bool((counts > seq_lens).any()):
        raise ValueError("a request has more queries than stored tokens: write its keys and values first")
    out = torch.empty_like(q)
    if not num_tokens:
        return out
    group = num_heads // num_kv_heads
    rows = 16 if int(counts.max()) == 1 else 32  # a step of decodes alone needs no more
    queries = rows // group
    attention_kernel[(num_tiles(num_tokens, num_seqs, queries), num_kv_heads)](
        *(out, q, k_cache, v_cache, block_tables, query_start_loc, seq_lens),
        *(math.log2(math.e) / math.sqrt(head_dim), block_tables.shape[1], num_seqs),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        ROWS=rows,
        QUERIES=queries,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE=tile_for(q),
        WINDOW=window,
        **launch_options(q),
    )
    return out


@dataclass(slots=True)
class Tensors:
    """s06's FlatBatch as the kernels take it, all on one device. T tokens, R requests."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64
    query_start_loc: Tensor  # [R + 1] int32
    seq_lens: Tensor  # [R] int32
    block_tables: Tensor  # [R, blocks of the longest] int32


@exercise
def tensors_of(flat: FlatBatch) -> Tensors:
    """A step's six lists as tensors on DEVICE; dtypes as in `Tensors`. Roughly 8 lines.

    `torch.tensor(list, dtype=…, device=DEVICE)` makes one from a list. Tables of different lengths make no rectangle: fill up the
    short ones behind their own entries, with any number, 0 say, in lists of your own: `flat.block_tables` are the scheduler's. The
    kernel masks what is behind a request's length. A request's table may be longer than its `seq_lens` need, for blocks that it was
    given early. A step has one request at least.
    """
    width = max(map(len, flat.block_tables))
    rows = [[*blocks, *[0] * (width - len(blocks))] for blocks in flat.block_tables]
    long, short = ({"dtype": kind, "device": DEVICE} for kind in (torch.int64, torch.int32))
    return Tensors(
        *(torch.tensor(numbers, **long) for numbers in (flat.tokens, flat.positions, flat.slot_mapping)),
        *(torch.tensor(numbers, **short) for numbers in (flat.query_start_loc, flat.seq_lens, rows)),
    )


class TorchRunner:
    """s06's PagedRunner on tensors: a model in torch behind the engine, its attention in the two kernels.

    model: a kit.torch_tinylm.TorchTinyLM. num_blocks, block_size: those of the scheduler's pool. cost: what a step is priced with;
    the tokens are real, the nanoseconds are modelled and stand for another machine.
    k, v: [num_layers, num_blocks, block_size, num_kv_heads, head_dim], on DEVICE. Nothing else is kept between steps.
    """

    def __init__(self, model: Any, num_blocks: int, block_size: int = 16, cost: CostModel = A100_LLAMA3_8B):
        c = model.config
        self.model, self.cost, self.block_size = model, cost, positive("block_size", block_size)
        shape = (c.num_layers, positive("num_blocks", num_blocks), block_size, c.num_kv_heads, c.head_dim)
        self.k, self.v = (torch.zeros(shape, dtype=model.dtype, device=DEVICE) for _ in range(2))

    def attention(self, step: Tensors, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What the model calls once a layer: first store the keys and values of all tokens, then attend."""
        write_kv(self.k[layer], self.v[layer], k, v, step.slot_mapping)
        return paged_attention(q, self.k[layer], self.v[layer], step.block_tables, step.query_start_loc, step.seq_lens)

    @exercise
    def execute(self, batch: BatchLike) -> tuple[Mapping[str, list[int]], int]:
        """One step of the engine: (request id -> [its new token], for those that sample; nanoseconds). Roughly 10 lines.

        As s06's, in five moves: `flatten(batch, self.block_size)`; the rows of those that have caught up (num_computed_tokens ==
        num_tokens), each the last of its request; `tensors_of` the flat batch; `self.model.forward(tokens, positions, attention,
        rows)` with `partial(self.attention, step)`, which returns scores [rows, vocab_size] on the device; and the argmax.

        A single `.tolist()` brings the argmax of all rows back; an `int(…)` for each would wait for the device each time, which no
        test here can see. The time: `self.cost.step_ns(tokens in the step, sum of the list seq_lens)`.
        """
        flat = flatten(batch, self.block_size)
        ends = [end - 1 for end in flat.query_start_loc[1:]]
        caught_up = {r.id: end for r, end in zip(batch.tokens, ends) if r.num_computed_tokens == r.num_tokens}
        step = tensors_of(flat)
        scores = self.model.forward(step.tokens, step.positions, partial(self.attention, step), list(caught_up.values()))
        tokens = {id: [token] for id, token in zip(caught_up, scores.argmax(dim=-1).tolist())}
        return tokens, self.cost.step_ns(len(flat.tokens), sum(flat.seq_lens))


def main(argv: list[str] | None = None) -> int:
    import sys

    from kit import kernels_prefill

    return kernels_prefill.prefill(argv, sys.modules[__name__])


if __name__ == "__main__":
    raise SystemExit(main())

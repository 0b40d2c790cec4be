"""s18 adds the rest of attention on the GPU: storing keys and values, and one kernel for prefill chunks and decodes together.

The shape of the file: `write_kernel` and `write_kv`; two pieces more, and `attention_kernel`, which is s17's with many queries a
request; `paged_attention`, which launches it; `TorchRunner`, the model behind the engine on torch tensors; `main`.
"""

from __future__ import annotations

import math
from typing import Any

from kit.exercise import exercise
from kit.gpu import jit, need, tl, torch, triton
from s17_triton_decode import absorb, check, launch_options, slots_of, tile_for

Tensor = Any  # torch.Tensor, where there is torch


@exercise
@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """One program for a token: store its key and value of all KV heads at its slot. Roughly 7 lines.

    k_cache, v_cache: pointers; slot s begins at s * WIDTH. k, v: token t begins at t * WIDTH, contiguous. WIDTH: num_kv_heads *
    head_dim; LANES: WIDTH up to a power of two, as `tl.arange` wants it: mask the lanes behind WIDTH.

    The program's token is `tl.program_id(0)`. Load its slot; -1 means that this token is not to be stored (padding). Make slot and
    token int64 before you multiply them.
    """
    raise NotImplementedError


def write_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
    """Store the keys and values of a step's tokens. ValueError for tensors that don't go together.

    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], changed in place. k, v: [tokens, num_kv_heads, head_dim].
    slot_mapping: [tokens] int32 or int64; -1 skips the token.
    """
    need("s18")
    num_slots = k_cache.shape[0] * k_cache.shape[1]
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
    if not len(k):
        return
    low, high = int(slot_mapping.min()), int(slot_mapping.max())
    if low < -1 or high >= num_slots:
        raise ValueError(f"slots from {low} to {high}: the cache has 0 to {num_slots - 1}, and -1 skips a token")
    width = k.shape[1] * k.shape[2]
    lanes = triton.next_power_of_2(width)
    write_kernel[(len(k),)](k_cache, v_cache, k.contiguous(), v.contiguous(), slot_mapping, WIDTH=width, LANES=lanes)


@exercise
@jit
def request_of(query_start_loc, tile, num_seqs, QUERIES: tl.constexpr):
    """Which request a program's tile of queries belongs to. Roughly 8 lines.

    query_start_loc: pointer to num_seqs + 1 numbers, as in s06's FlatBatch. Request i has its first tile at number
    query_start_loc[i] // QUERIES + i: each request before it may leave one tile part-filled, so numbers are never shared, though some
    stay unused. These numbers increase: find the last request whose first tile is not beyond `tile`, by bisection.
    """
    raise NotImplementedError


@exercise
@jit
def causal(key_positions, query_positions, WINDOW: tl.constexpr):
    """Which keys each query sees: [ROWS, TILE] of bool. Roughly 3 lines.

    key_positions: [TILE]. query_positions: [ROWS]; both count from the start of the request. A query sees itself and what is before
    it; with a WINDOW above 0 only the last WINDOW of those, itself among them.
    """
    raise NotImplementedError


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
    end = stored_before + tl.minimum(first_query + QUERIES, num_queries)  # keys that the tile's last query sees
    first = tl.maximum(stored_before + first_query + 1 - WINDOW, 0) // TILE if WINDOW > 0 else 0

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for tile in range(first, tl.cdiv(end, TILE)):
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
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    num_seqs = len(seq_lens)
    if (
        query_start_loc.dtype != torch.int32
        or query_start_loc.device != q.device
        or query_start_loc.shape != (num_seqs + 1,)
    ):
        raise ValueError(f"query_start_loc must be {num_seqs + 1} int32 on {q.device}, one more than there are requests")
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
    attention_kernel[(num_tokens // queries + num_seqs, num_kv_heads)](
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


def main(argv: list[str] | None = None) -> int:
    from kit import kernels

    return kernels.prefill(argv, paged_attention, write_kv)


if __name__ == "__main__":
    raise SystemExit(main())

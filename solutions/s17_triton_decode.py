"""s17 adds the kernel: decode attention that reads keys and values where their blocks lie, without gathering them first.

The shape of the file: `sums_kernel`, an example; `gathered_attention`, slow and exact; four pieces of a kernel, and the two
kernels made of them; `check`, `splits_for` and `paged_decode`, which launch them; `main`.
"""

from __future__ import annotations

import math
from typing import Any

from kit.config import positive
from kit.exercise import exercise
from kit.gpu import INTERPRETED, jit, need, tl, torch, triton

Tensor = Any  # torch.Tensor, where there is torch
HEAD_DIMS = (32, 64, 128)
LONGEST = 2**31 - 4096  # tokens of a request: positions are 32-bit numbers, up to the end of the last tile
LARGEST_GROUP = 16  # query heads that share a KV head: the rows of one tile of a tensor core
MOST_SPLITS = 128  # parts that the program that merges them has registers for


@jit
def sums_kernel(out, matrix, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DOUBLE: tl.constexpr):
    """An example: the sums of a matrix's rows, ROWS of them a program. COLUMNS: its width, up to a power of two."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # which of the programs this one is; 0, 1, ... ROWS - 1
    columns = tl.arange(0, COLUMNS)  # an arange has the length of a power of two
    there = columns < width
    place = rows[:, None] * width + columns[None, :]  # a column beside a row: a tile [ROWS, COLUMNS] of offsets
    numbers = tl.load(matrix + place, mask=there[None, :], other=0.0)  # pointer + tile: where not `there`, 0 and no access
    if DOUBLE:  # a constexpr is known when this is compiled, so a plain `if` will do
        numbers = twice(numbers)  # a @jit function may call another
    tl.store(out + rows, tl.sum(numbers, axis=1))  # along each row; without an axis, one sum of all


@jit
def twice(x):
    return x + x


@exercise
def gathered_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, window: int = 0
) -> Tensor:
    """What the kernel must return, computed in float64 by gathering first. Roughly 14 lines.

    q: [num_seqs, num_heads, head_dim], the query of one new token a request; its own key and value are stored already.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]. block_tables: [num_seqs, width] block ids; entries behind a
    request's last block mean nothing. seq_lens: [num_seqs] tokens stored for it, perhaps 0.
    window: a query sees only the last so many tokens; 0 means all.

    For each request: its keys and values, in order, cut to its length and window; query heads h * group up to (h + 1) * group
    read KV head h, where group = num_heads / num_kv_heads; softmax of q·k / sqrt(head_dim), times v. Zeros for a request without
    tokens. Returns [num_seqs, num_heads, head_dim] in float64.
    """
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for i, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        blocks = block_tables[i, : -(-length // block_size)].long()
        first = max(length - window, 0) if window else 0
        k, v = (cache[blocks].flatten(0, 1)[first:length].double() for cache in (k_cache, v_cache))
        queries = q[i].double().view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores = torch.einsum("hgd,nhd->hgn", queries, k) / math.sqrt(head_dim)
        out[i] = torch.einsum("hgn,nhd->hgd", scores.softmax(-1), v).reshape(num_heads, head_dim)
    return out


# The pieces of a kernel. Each works on a tile: TILE tokens of one request, which may lie in several blocks.


@exercise
@jit
def slots_of(table, positions, wanted, BLOCK_SIZE: tl.constexpr):
    """Where the tokens at `positions` of one request are stored. Roughly 2 lines.

    table: pointer to the first entry of its row of the block table. positions: [TILE]. wanted: [TILE], False where nothing may be
    read, not even the table: pass it as the `mask` of the load, with `other=0`.

    Position p stands in entry p // BLOCK_SIZE, at place p % BLOCK_SIZE of that block; s06's `slot_mapping`. Make the block's number an
    int64 before you multiply: in a large cache a slot times its width does not fit into 32 bits. Returns [TILE] slots.
    """
    block = tl.load(table + positions // BLOCK_SIZE, mask=wanted, other=0)
    return block.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE


@exercise
@jit
def visible(positions, length, WINDOW: tl.constexpr):
    """Which of these positions the newest token attends to. Roughly 3 lines.

    Those below `length`; with a WINDOW above 0 only the last WINDOW of them. Tiles of bool are combined with `&`; Python's `and`
    keeps one of the two. Returns [TILE] of bool.
    """
    seen = positions < length
    if WINDOW > 0:
        seen = seen & (positions >= length - WINDOW)
    return seen


@exercise
@jit
def absorb(scores, v, peak, total, acc, PRECISION: tl.constexpr):
    """Take one more tile into a softmax that has seen others (online softmax: Milakov and Gimelshein, 2018). Roughly 7 lines.

    scores: [ROWS, TILE], in units of log2, -inf where nothing is to be seen. v: [TILE, HEAD_DIM].
    peak, total: [ROWS], the largest score so far (-inf at first) and the sum of 2 ** (score - peak). acc: [ROWS, HEAD_DIM], the sum of
    2 ** (score - peak) * value.

    1. The new peak: `tl.maximum` of the old one and of each row's `tl.max(scores, axis=1)`.
    2. A row that has still seen nothing has the peak -inf, and -inf - -inf is not a number: subtract 0 there (`tl.where`). What
       stands beside a tile, a number a row, gets an axis first: `[:, None]`.
    3. What was summed under the old peak shrinks by 2 ** (old - new), `tl.exp2`; then the tile's weights 2 ** (score - new) join:
       `tl.sum(..., axis=1)` of them in total, `tl.dot(weights in v's dtype, v, input_precision=PRECISION)` in acc.
    Returns (new peak, total, acc).
    """
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    shrink = tl.exp2(peak - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_peak, total, acc


@exercise
@jit
def merge(parts, lse):
    """One row's attention from that of its splits. Roughly 5 lines.

    parts: [SPLITS, HEAD_DIM], each the attention over its own tokens. lse: [SPLITS], log2 of the sum of 2 ** score over them; -inf for a
    split without tokens, whose part is 0.

    Each part counts by its share 2 ** lse of the whole sum; take the largest lse out first, as in `absorb`. With no tokens at
    all, return zeros. Returns [HEAD_DIM].
    """
    peak = tl.max(lse, axis=0)
    shares = tl.exp2(lse - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(shares, axis=0)
    return tl.sum(parts * shares[:, None], axis=0) / tl.where(total > 0, total, 1.0)


@jit
def decode_kernel(
    out,  # [num_seqs, num_heads, splits, HEAD_DIM]
    lse,  # [num_seqs, num_heads, splits]
    q,
    k_cache,
    v_cache,
    block_tables,
    seq_lens,
    scale,  # of q·k, times log2(e): the kernel's exponentials are powers of two
    table_width,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,  # GROUP, up to a size that tl.dot takes
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One program for a request, a KV head and a split of its tokens: the group's queries are the rows of every dot."""
    request, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)
    real = rows < GROUP
    row = request * NUM_KV_HEADS * GROUP + kv_head * GROUP + rows  # of q: request and query head
    queries = tl.load(q + row[:, None] * HEAD_DIM + dims[None, :], mask=real[:, None], other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)

    length = tl.load(seq_lens + request)
    first = tl.maximum(length - WINDOW, 0) // TILE if WINDOW > 0 else 0
    share = tl.cdiv(tl.cdiv(length, TILE) - first, tl.num_programs(2))
    first += split * share

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for tile in range(first, tl.minimum(first + share, tl.cdiv(length, TILE))):
        positions = tile * TILE + tl.arange(0, TILE)
        seen = visible(positions, length, WINDOW)
        slots = slots_of(block_tables + request * table_width, positions, seen, BLOCK_SIZE)
        place = (slots * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(k_cache + place, mask=seen[:, None], other=0.0)
        v = tl.load(v_cache + place, mask=seen[:, None], other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        peak, total, acc = absorb(scores, v, peak, total, acc, PRECISION)

    some = tl.where(total > 0, total, 1.0)
    place = row * tl.num_programs(2) + split
    tl.store(
        out + place[:, None] * HEAD_DIM + dims[None, :], (acc / some[:, None]).to(out.dtype.element_ty), mask=real[:, None]
    )
    tl.store(lse + place, tl.where(total > 0, peak + tl.log2(some), float("-inf")), mask=real)


@jit
def reduce_kernel(out, parts, lse, num_splits, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr):
    """One program for a request and a query head: its splits become one. SPLITS: num_splits, up to a power of two."""
    row = tl.program_id(0).to(tl.int64)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, HEAD_DIM)
    there = splits < num_splits
    place = row * num_splits + splits
    part = tl.load(parts + place[:, None] * HEAD_DIM + dims[None, :], mask=there[:, None], other=0.0)
    whole = merge(part, tl.load(lse + place, mask=there, other=float("-inf")))
    tl.store(out + row * HEAD_DIM + dims, whole.to(out.dtype.element_ty))


@exercise
def splits_for(num_seqs: int, num_kv_heads: int, longest: int, tile: int, processors: int) -> int:
    """Into how many splits to cut each request, so that no processor of the GPU is idle. Roughly 4 lines.

    longest: tokens of the longest request. tile: tokens a tile. processors: streaming multiprocessors, each of which takes several
    programs; aim at two programs for each. All at least 1, but for num_seqs and longest, which may be 0.

    1. Without splitting there are num_seqs * num_kv_heads programs. How many splits make at least 2 * processors of them? Ask for
       MOST_SPLITS // 2 at most: step 2 may nearly double it.
    2. Give each split that fraction of `longest`'s tiles, rounded down, but at least one tile: who rounds up leaves splits without any.
    3. Return how many splits that makes, the last one perhaps shorter; at least 1. (A shorter request may leave some empty.)
    """
    wanted = min(-(-2 * processors // max(num_seqs * num_kv_heads, 1)), MOST_SPLITS // 2)
    tiles = -(-longest // tile)
    each = max(1, tiles // wanted)
    return max(1, -(-tiles // each))


def check(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor) -> None:
    """ValueError, in a sentence, for what a kernel would read wrongly or outside of its tensors."""
    if not (q.dim() == 3 and k_cache.dim() == 4 and block_tables.dim() == 2 and seq_lens.dim() == 1):
        raise ValueError(
            "q has 3 dimensions, a cache 4, block_tables 2 and seq_lens 1; these have "
            f"{q.dim()}, {k_cache.dim()}, {block_tables.dim()} and {seq_lens.dim()}"
        )
    if k_cache.shape != v_cache.shape:
        raise ValueError(f"k_cache is {tuple(k_cache.shape)} and v_cache {tuple(v_cache.shape)}: they must be alike")
    (num_heads, head_dim), (num_blocks, block_size, num_kv_heads, cache_dim) = q.shape[1:], k_cache.shape
    if not block_size or not num_kv_heads:
        raise ValueError(f"k_cache is {tuple(k_cache.shape)}: blocks of at least one token, for at least one KV head")
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_tables": block_tables, "seq_lens": seq_lens}
    for name, tensor in tensors.items():
        if tensor.device != q.device:
            raise ValueError(f"q is on {q.device} and {name} on {tensor.device}: move one of them")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is not contiguous: call .contiguous() on it")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32) or {k_cache.dtype, v_cache.dtype} != {q.dtype}:
        raise ValueError(
            f"q is {q.dtype}, the caches {k_cache.dtype} and {v_cache.dtype}: all float16, bfloat16 or float32"
        )
    if {block_tables.dtype, seq_lens.dtype} != {torch.int32}:
        raise ValueError(f"block_tables are {block_tables.dtype} and seq_lens {seq_lens.dtype}: both must be int32")
    if head_dim not in HEAD_DIMS or cache_dim != head_dim:
        raise ValueError(f"head size {head_dim} of q, {cache_dim} of the caches: both must be one of {HEAD_DIMS}")
    if num_heads % num_kv_heads or num_heads // num_kv_heads > LARGEST_GROUP:
        raise ValueError(
            f"{num_heads} heads over {num_kv_heads} KV heads: a whole number of at most {LARGEST_GROUP} must share one"
        )
    if block_tables.shape[0] != len(seq_lens):
        raise ValueError(f"{block_tables.shape[0]} block tables for {len(seq_lens)} lengths")
    if not len(seq_lens):
        return
    longest, shortest = int(seq_lens.max()), int(seq_lens.min())
    room = block_tables.shape[1] * block_size
    if shortest < 0 or longest > min(room, LONGEST):
        raise ValueError(
            f"lengths from {shortest} to {longest}: a table of {block_tables.shape[1]} blocks of {block_size} has room for {room}, and a kernel counts to {LONGEST:,}"
        )
    begins = torch.arange(0, room, block_size, device=q.device)
    used = block_tables[begins < seq_lens[:, None]]  # what stands behind a request's last block means nothing
    if len(used) and not 0 <= int(used.min()) <= int(used.max()) < num_blocks:
        raise ValueError(
            f"block ids from {int(used.min())} to {int(used.max())} in the tables: the cache has blocks 0 to {num_blocks - 1}"
        )


def tile_for(q: Tensor) -> int:
    """Tokens a tile: as many as no register is spilled for (tools/compile_kernels.py). The interpreter has none to spill."""
    return 16 if q.dtype == torch.float32 and not INTERPRETED else 64


def launch_options(q: Tensor) -> dict[str, Any]:
    """What both lessons' kernels are told about numbers: exact products for float32, which take more threads' registers; the
    interpreter adds in float32 only."""
    exact = q.dtype == torch.float32
    return {"PRECISION": "ieee" if exact else "tf32", "UPCAST": INTERPRETED, "num_warps": 8 if exact else 4}


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    window: int = 0,
    num_splits: int = 0,
) -> Tensor:
    """Attention of one new token a request, through its block table. Shapes as in `gathered_attention`; returns q's dtype.

    num_splits: 0 lets `splits_for` choose. ValueError for tensors that don't go together.
    """
    need("s17")
    check(q, k_cache, v_cache, block_tables, seq_lens)
    positive("window", window, 0)
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    if q.shape[0] != len(seq_lens):
        raise ValueError(f"{q.shape[0]} queries for {len(seq_lens)} requests: a decode has one each")
    out = torch.empty_like(q)
    if not num_seqs:
        return out
    tile = tile_for(q)
    if num_splits == 0:
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1
        longest = int(seq_lens.max())
        seen = min(longest, window - 1 + tile) if window else longest  # a window may begin anywhere in its first tile
        num_splits = splits_for(num_seqs, num_kv_heads, seen, tile, processors)
    if positive("num_splits", num_splits) > MOST_SPLITS:
        raise ValueError(f"num_splits is {num_splits}: one program merges them, and has registers for {MOST_SPLITS}")
    shape = (num_seqs, num_heads, num_splits)
    parts = out if num_splits == 1 else torch.empty(*shape, head_dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    group = num_heads // num_kv_heads
    decode_kernel[(num_seqs, num_kv_heads, num_splits)](
        *(parts, lse, q, k_cache, v_cache, block_tables, seq_lens),
        *(math.log2(math.e) / math.sqrt(head_dim), block_tables.shape[1]),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        ROWS=LARGEST_GROUP,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE=tile,
        WINDOW=window,
        **launch_options(q),
    )
    if num_splits > 1:
        splits = triton.next_power_of_2(num_splits)
        reduce_kernel[(num_seqs * num_heads,)](out, parts, lse, num_splits, HEAD_DIM=head_dim, SPLITS=splits)
    return out


def main(argv: list[str] | None = None) -> int:
    import sys

    from kit import kernels

    return kernels.decode(argv, sys.modules[__name__])


if __name__ == "__main__":
    raise SystemExit(main())

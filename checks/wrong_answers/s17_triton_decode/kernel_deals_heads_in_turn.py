"""KV head h serves the query heads h, h + num_kv_heads, and so on. A group is query heads that stand next to each other."""

CAUGHT_BY = "test_query_heads_that_share_a_kv_head"
MESSAGE = "the wrong KV head for a group"


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
    row = request * NUM_KV_HEADS * GROUP + rows * NUM_KV_HEADS + kv_head
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

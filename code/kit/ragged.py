"""Ragged batches for the lessons on kernels, made to be misread: shuffled block tables, NaN wherever nothing may be read.

`ragged(seed, lengths)` makes a batch, `reference` computes its attention in float64, `verdict` compares a kernel's output with
that and names the likely mistake, `poisoned` makes what a kernel forgets to store visible. Addresses outside of all tensors are
kit.reach's concern.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kit.gpu import DEVICE, torch

Tensor = Any
TOLERANCE = {"float32": 3e-7, "float16": 5e-4, "bfloat16": 7e-3}  # of the relative error against float64
POISON = 54321.0  # what an output holds before a kernel stores it: no attention over normal values comes near
REACH = 2**31  # elements: as far as an offset in 32 bits goes


@dataclass(frozen=True, slots=True)
class Ragged:
    """A batch as the kernels take it. Request i has the queries query_start_loc[i] up to query_start_loc[i + 1]."""

    q: Tensor  # [tokens, num_heads, head_dim]
    k_cache: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim], NaN wherever no token is stored
    v_cache: Tensor
    block_tables: Tensor  # [num_seqs, width] int32; entries behind a request's last block are `trap`
    seq_lens: Tensor  # [num_seqs] int32, its queries' tokens included
    query_start_loc: Tensor  # [num_seqs + 1] int32
    trap: int  # a block full of NaN that no request owns
    first: int = 0  # the blocks before this one hold nothing, not even NaN

    @property
    def block_size(self) -> int:
        return self.k_cache.shape[1]

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k_cache.shape[2]

    @property
    def decode(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The arguments of s17's `paged_decode` and `gathered_attention`."""
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.seq_lens

    @property
    def mixed(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The arguments of s18's `paged_attention`."""
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.query_start_loc, self.seq_lens

    def slots(self, request: int) -> Tensor:
        """Where the tokens of a request are stored, in order: [length]."""
        positions = torch.arange(int(self.seq_lens[request]), device=self.q.device)
        blocks = self.block_tables[request].long()[positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size

    def to_write(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The arguments of s18's `write_kv` that lead to this batch's caches: caches without the queries' tokens, k, v, slots."""
        counts = self.query_start_loc.diff().tolist()
        slots = torch.cat([self.slots(i)[len(self.slots(i)) - n :] for i, n in enumerate(counts)])
        caches, new = [], []
        for full in (self.k_cache, self.v_cache):
            cache = torch.empty_like(full)
            cache[self.first :] = full[self.first :]
            new.append(full.flatten(0, 1)[slots])
            cache.flatten(0, 1)[slots] = math.nan
            caches.append(cache)
        return caches[0], caches[1], new[0], new[1], slots


def edges(block_size: int) -> list[int]:
    """The lengths at which kernels go wrong: nothing, one token, a block but for one token, a block, one more, and so on."""
    return [0, 1, block_size - 1, block_size, block_size + 1, 3 * block_size - 1, 3 * block_size, 3 * block_size + 1]


def ragged(
    seed: int,
    lengths: Sequence[int],
    counts: Sequence[int] | None = None,
    *,
    dtype: str = "float32",
    head_dim: int = 64,
    num_kv_heads: int = 2,
    group: int = 4,
    block_size: int = 16,
    shared: int = 0,
    far: bool = False,
) -> Ragged:
    """A batch of requests with `lengths` stored tokens each, the last `counts` of which are queries (one each if not given).

    shared: so many leading blocks are one and the same for all requests that fill them, as after a prefix hit. far: all blocks
    lie where an offset in 32 bits does not reach. On a CPU the memory before them costs nothing, for nobody touches it.
    """
    rng = random.Random(seed)
    decode = counts is None
    counts = [1] * len(lengths) if counts is None else list(counts)
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, kind)

    computed = [length if decode else length - count for length, count in zip(lengths, counts)]
    common = [min(shared, tokens // block_size) for tokens in computed]
    owned = [-(-length // block_size) for length in lengths]
    needed = max(common, default=0) + sum(all_ - some for all_, some in zip(owned, common))
    width = num_kv_heads * head_dim
    first = REACH // (block_size * width) + 1 if far else 0
    num_blocks = first + needed + 3  # besides: the trap, and two that were free
    names = rng.sample(range(first, num_blocks), num_blocks - first)
    trap, prefix = names.pop(), [names.pop() for _ in range(max(common, default=0))]
    table_width = max(owned, default=0) + 2
    behind = 4  # rows full of the trap: what is read behind the last request's
    tables = torch.full((len(lengths) + behind, table_width), trap, dtype=torch.int32, device=DEVICE)[: len(lengths)]
    rows = [prefix[:some] + [names.pop() for _ in range(all_ - some)] for all_, some in zip(owned, common)]
    for i, row in enumerate(rows):
        tables[i, : len(row)] = torch.tensor(row, dtype=torch.int32)

    caches = []
    for _ in range(2):
        cache = torch.empty(num_blocks, block_size, num_kv_heads, head_dim, dtype=kind, device=DEVICE)
        cache[first:] = math.nan
        stored = [*rows, prefix]
        tokens = [*lengths, len(prefix) * block_size]
        for row, length in zip(stored, tokens):  # the prefix last, so that it is the same for all
            slots = torch.tensor(row, dtype=torch.long).repeat_interleave(block_size) * block_size
            slots = (slots + torch.arange(len(slots)) % block_size)[:length].to(DEVICE)
            cache.flatten(0, 1)[slots] = normal(length, num_kv_heads, head_dim)
        caches.append(cache)
    # Half as large: a score's rounding error grows with the score, and in float32 those of full size nearly use up the tolerance.
    q = normal(sum(counts), num_kv_heads * group, head_dim) / 2
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    int32 = {"dtype": torch.int32, "device": DEVICE}
    return Ragged(
        q, caches[0], caches[1], tables, torch.tensor(lengths, **int32), torch.tensor(starts, **int32), trap, first
    )


def random_batch(seed: int, *, longest: int = 150, decode: bool = True, **options: Any) -> Ragged:
    """Three to six requests: half of them of a length at which kernels go wrong. options: those of `ragged`."""
    rng = random.Random(seed)
    options = {
        "block_size": rng.choice([8, 16, 32]),
        "group": rng.choice([1, 2, 3, 4, 7]),
        "shared": rng.randint(0, 2),
        **options,
    }
    near = [length for length in edges(options["block_size"]) if length <= longest]
    lengths = [rng.choice(near) if rng.random() < 0.5 else rng.randint(1, longest) for _ in range(rng.randint(3, 6))]
    if decode:
        return ragged(seed, lengths, **options)
    return ragged(seed, lengths, [rng.choice([1, rng.randint(0, n), n]) if n else 0 for n in lengths], **options)


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it, what `torch.empty` and `torch.empty_like` return is full of POISON."""
    from torch.overrides import TorchFunctionMode

    class Poison(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            fresh = func in (torch.empty, torch.empty_like, torch.Tensor.new_empty) and made.is_floating_point()
            return made.fill_(POISON) if fresh else made

    with Poison():
        yield


def reference(batch: Ragged, window: int = 0, **mistake: Any) -> Tensor:
    """Attention of a batch in float64, by gathering first: [tokens, num_heads, head_dim]. mistake: see `MISTAKES`."""
    out = torch.zeros(batch.q.shape, dtype=torch.float64, device=batch.q.device)
    starts = batch.query_start_loc.tolist()
    for i, (begin, end) in enumerate(zip(starts, starts[1:])):
        out[begin:end] = _attend(batch, i, batch.q[begin:end].double(), window, **mistake)
    return out


def _attend(
    batch: Ragged,
    request: int,
    q: Tensor,
    window: int,
    shift: int = 0,
    from_zero: bool = False,
    head: str = "h // group",
    scale: float = 1.0,
    place: str = "",
    tile: int = 0,
    keep: str = "",
) -> Tensor:
    count, num_heads, head_dim = q.shape
    length = int(batch.seq_lens[request])
    slots = batch.slots(request)
    if place == "first":
        slots = slots - slots % batch.block_size
    elif place == "logical":
        slots = torch.arange(length, device=q.device)
    elif place == "table 0":
        entry = torch.arange(length, device=q.device)
        slots = batch.block_tables[0].long()[entry // batch.block_size] * batch.block_size + entry % batch.block_size
    heads = torch.arange(num_heads, device=q.device)
    heads = {"h // group": heads // batch.group, "h % kv": heads % batch.k_cache.shape[2], "0": heads * 0}[head]
    k, v = (cache.flatten(0, 1)[slots].double()[:, heads] for cache in (batch.k_cache, batch.v_cache))
    keys = torch.arange(length, device=q.device)
    last = torch.arange(count, device=q.device)[:, None] + (0 if from_zero else length - count)
    seen = keys <= last + shift
    if window:
        seen &= keys > last - window
    scores = torch.einsum("qhd,nhd->hqn", q, k) * scale / math.sqrt(head_dim)
    scores = scores.masked_fill(~seen, -math.inf)
    if not length:
        return torch.zeros_like(q)
    peak = torch.full((num_heads, count, 1), -math.inf, dtype=q.dtype, device=q.device)
    total, acc = torch.zeros_like(peak), torch.zeros(num_heads, count, head_dim, dtype=q.dtype, device=q.device)
    for at in range(0, length, tile or length):
        part = scores[..., at : at + (tile or length)]
        new = torch.maximum(peak, part.amax(-1, keepdim=True))
        base = new.masked_fill(new == -math.inf, 0.0)
        weights, shrink = (part - base).exp(), (peak - base).exp()
        total = total * (1 if "total" in keep else shrink) + weights.sum(-1, keepdim=True)
        values = v[at : at + (tile or length)]
        acc = acc * (1 if "acc" in keep else shrink) + torch.einsum("hqn,nhd->hqd", weights, values)
        peak = new
    if "sum" not in keep:
        acc = acc / total.masked_fill(total == 0, 1.0)
    return acc.transpose(0, 1)


# What each mistake makes of a batch: the first whose output is the kernel's is named. (window, tile) -> arguments of `_attend`
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    ("the newest token is left out: a query sees its own position too", {"shift": -1}),
    ("a query sees the token behind its own: the mask is off by one", {"shift": 1}),
    ("a query sees all of its request: compare key positions with the query's own", {"shift": REACH}),
    ("a query's position counts from the start of its request, not of its chunk", {"from_zero": True}),
    ("the wrong KV head for a group: query head h reads KV head h // group, not h % num_kv_heads", {"head": "h % kv"}),
    ("every head reads KV head 0: its number is missing from the address", {"head": "0"}),
    ("the scores are not divided by sqrt(head_dim)", {"scale": "sqrt"}),
    ("the scores are not scaled: the kernel's exponentials are powers of two, of q·k * scale", {"scale": "none"}),
    ("exp2 of scores in units of e: the scale lacks its log2(e)", {"scale": math.log(2)}),
    ("exp of scores in units of log2: tl.exp2 is meant", {"scale": 1 / math.log(2)}),
    ("each token reads the first place of its block: add position % block_size", {"place": "first"}),
    ("positions are taken for slots: the block table was not asked", {"place": "logical"}),
    ("every request reads the first one's block table: add its row to the address", {"place": "table 0"}),
    ("the accumulator is not rescaled: what was summed under the old peak shrinks by 2 ** (old - new)", {"keep": "acc"}),
    ("the total is not rescaled: what was summed under the old peak shrinks by 2 ** (old - new)", {"keep": "total"}),
    ("neither total nor accumulator is rescaled when the peak rises", {"keep": "acc total"}),
    ("the sum was not divided by the total of the weights", {"keep": "sum"}),
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a kernel's output compares with float64. `wrong` and `cause` are empty where it is right."""

    error: float  # ||output - wanted|| / ||wanted||, NaN where the output has one
    tolerance: float
    wrong: str = ""  # which requests and heads
    cause: str = ""


def relative_error(got: Tensor, want: Tensor) -> float:
    """||got - want|| / ||want||, both in float64; the norm of `got` where nothing is wanted."""
    norm = float(want.norm())
    return float((got.double() - want).norm()) / (norm or 1.0)


def verdict(got: Tensor, batch: Ragged, window: int = 0, *, tile: int = 0, splits: int = 1) -> Verdict:
    """Compare a kernel's output for a batch with float64. tile, splits: how the kernel cut its work, for the diagnosis."""
    want = reference(batch, window)
    name = str(batch.q.dtype).removeprefix("torch.")
    allowed = TOLERANCE[name]
    if got.shape != want.shape:
        return Verdict(
            math.nan, allowed, f"the output is {list(got.shape)}, not {list(want.shape)}", "one row a query and head"
        )
    if got.dtype != batch.q.dtype:
        return Verdict(
            math.nan, allowed, f"the output is {got.dtype}, not {batch.q.dtype}", "store in the output's own dtype"
        )
    error = relative_error(got, want)
    rows = (got.double() - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-3)
    bad = ~(rows <= 4 * allowed)  # a single row may be off by more than the whole, though not by much; NaN is bad
    if error <= allowed and not bad.any():
        return Verdict(error, allowed)
    if not bad.any():
        bad = rows > allowed
    starts = batch.query_start_loc.tolist()
    hit = [i for i in range(len(starts) - 1) if bad[starts[i] : starts[i + 1]].any()]
    heads = bad.any(0).nonzero().flatten().tolist()
    lengths = batch.seq_lens.tolist()
    wrong = (
        f"relative error {error:.1e}, allowed {allowed:.0e}; wrong for {len(hit)} of {len(lengths)} requests "
        f"(lengths {_list(sorted({lengths[i] for i in hit}))}), heads {_list(heads)} of {got.shape[1]}"
    )
    return Verdict(error, allowed, wrong, _cause(got, want, bad, batch, window, tile, splits, hit, heads))


def _cause(
    got: Tensor,
    want: Tensor,
    bad: Tensor,
    batch: Ragged,
    window: int,
    tile: int,
    splits: int,
    hit: list[int],
    heads: list[int],
) -> str:
    lengths, size = batch.seq_lens.tolist(), batch.block_size
    fine = [i for i in range(len(lengths)) if i not in hit and lengths[i]]
    tiles = [-(-length // tile) if tile else 1 for length in lengths]
    empty = [(splits - 1) * -(-n // splits) >= n for n in tiles]  # requests that have a split without tokens
    if bool((got.double() - POISON).abs().lt(POISON / 100).any()):
        return "rows of the output were never stored: is every request, head and row stored, those without tokens too?"
    missing = ~got.isfinite().all(-1) & bad
    if missing.any():
        starts = batch.query_start_loc.tolist()
        there = [i for i in hit if missing[starts[i] : starts[i + 1]].any()]
        if all(lengths[i] == 0 for i in there):
            return "NaN where nothing is seen: -inf - -inf is not a number, and neither is 0 / 0"
        if splits > 1 and all(empty[i] for i in there) and any(not empty[i] for i in fine):
            return (
                "NaN for requests with a split that has no tokens: its lse is -inf, its part 0, and -inf - -inf no number"
            )
        if all(lengths[i] % size for i in there) and any(lengths[i] % size == 0 for i in fine):
            return f"NaN: the rest of a request's last block of {size} is read; mask by its length, not by its blocks"
    for cause, out in _simulated(batch, window, tile):
        if _same(got, out, want):
            return cause
    if missing.any():
        return (
            "NaN: what must not be read is read: behind a request's length, an unused entry of its table, another block; "
            "a weight of 0 does not help, 0 * NaN is NaN: mask the load"
        )
    if float(got.double().abs().max()) > 100:
        return "far too large: a part that was never stored was merged, or a total is 0"
    if batch.q.dtype == torch.float32 and relative_error(got, want) < 5e-3:
        return 'nearly right: products rounded to TF32 or 16 bits where float32 is exact (input_precision="ieee")'
    if splits > 1:
        return f"merging {splits} splits: each part counts by 2 ** lse of the whole sum, the largest lse taken out first"
    if tile and fine and all(lengths[i] > tile for i in hit):
        return f"wrong beyond one tile of {tile} tokens: what was summed under the old peak shrinks when the peak rises"
    if len(heads) < got.shape[1] and min(heads) >= batch.group:
        return "right for KV head 0 only: does every address contain the KV head?"
    if fine and max(fine) < min(hit):
        return "right for the first requests only: does every address contain the request?"
    return "the addresses of q, keys or values, or the mask: try one request of one token and one KV head"


def _simulated(batch: Ragged, window: int, tile: int) -> Iterator[tuple[str, Tensor]]:
    """What each mistake would have given."""
    for cause, mistake in MISTAKES:
        if "keep" in mistake and mistake["keep"] != "sum":
            if not tile:
                continue
            mistake = {**mistake, "tile": tile}
        if mistake.get("scale") in ("sqrt", "none"):
            mistake = {"scale": math.sqrt(batch.q.shape[-1]) * (math.log(2) if mistake["scale"] == "none" else 1)}
        if mistake.get("place") == "logical" and batch.k_cache.shape[0] * batch.block_size < int(batch.seq_lens.max()):
            continue
        yield cause, reference(batch, window, **mistake)
    if window:
        yield "the window is ignored", reference(batch)
        yield "a window of W tokens holds the newest one too: one token too many is seen", reference(batch, window + 1)
        if window > 1:
            yield "a window of W tokens holds the newest one too: one token too few is seen", reference(batch, window - 1)


def errors_of_mistakes(batch: Ragged, tile: int) -> dict[str, float]:
    """By its cause, how far each mistake that can be named moves the output of a batch: the relative error, if it changes any."""
    want = reference(batch)
    found = {cause.partition(":")[0]: relative_error(out, want) for cause, out in _simulated(batch, 0, tile)}
    return {cause: error for cause, error in found.items() if error > 0}  # an error that is NaN is left out, too


def _same(got: Tensor, other: Tensor, want: Tensor) -> bool:
    """Whether an output is what a mistake gives, and that is not what is wanted."""
    numbers = other.isfinite()
    if not bool((got.isfinite() == numbers).all()) or not numbers.any():
        return False
    got, other, want = got.double()[numbers], other[numbers], want[numbers]
    return relative_error(got, other) < min(0.01, 0.1 * relative_error(want, other))


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return f"{shown}, …" if len(numbers) > 8 else shown

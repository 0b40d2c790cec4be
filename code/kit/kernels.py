"""What s17 shows when it runs: a small kernel, who reads what, the online softmax by hand, and what it all must move.

The shape of the file: the main job; then the pieces in its order: `online` and `walk`, the kernel in plain Python; `Decodes`,
bytes and operations of a step; `compiled`, what a compiler made of the kernels. What has to launch a kernel is left out, with
the reason, where there is no Triton.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from kit import gpu, options
from kit.report import heading, table

SCORES, VALUES = (1, 3, 2, 5, 4, 0), (10, 20, 30, 40, 50, 60)  # of the example by hand; scores in units of log2
TILE, HEAD_DIM = 64, 64  # of the walk
A100_PROCESSORS, H100_PROCESSORS = 108, 132  # streaming multiprocessors
COMPILED = Path(__file__).resolve().parents[2] / "bench" / "kernels.txt"  # what tools/compile_kernels.py has said


def decode(argv: Sequence[str] | None, s17: ModuleType) -> int:
    """The main job of s17. s17: the lesson, so that the learner's own pieces run."""
    return options.run(lambda: _decode(options.parse("s17_triton_decode", argv), s17))


def _decode(args: argparse.Namespace, s17: Any) -> int:
    data = {
        "example": _example(s17),
        "programs": _programs(s17),
        "online": _by_hand(),
        "walk": _walk(args, s17),
        "splits": _splits(s17),
        "moved": _moved(),
        "compiled": _compiled(),
    }
    options.json_out(args, data)
    return 0


# 1. A kernel


def _example(s17: Any) -> list[float]:
    heading("1. A kernel of eight lines")
    if missing := gpu.lacking():
        print(f"Skipped: launching a kernel {missing}.")
        return []
    torch, numbers = gpu.torch, [[1, 2, 3], [10, 20, 30], [100, 200, 300], [0, 5, 0]]
    matrix = torch.tensor(numbers, dtype=torch.float32, device=gpu.DEVICE)
    out = torch.empty(4, device=gpu.DEVICE)
    s17.sums_kernel[(2,)](out, matrix, 3, ROWS=2, COLUMNS=4, DOUBLE=False)
    print("sums_kernel[(2,)](out, matrix, 3, ROWS=2, COLUMNS=4, DOUBLE=False)\n")
    rows = [
        (i // 2, f"rows {i} and {i + 1}", "1 1 1 0", f"{_words(numbers[i])} 0 | {_words(numbers[i + 1])} 0", _words(out.tolist()[i : i + 2]))
        for i in (0, 2)
    ]  # fmt: skip
    print(table(("program", "its tile", "there", "loaded", "stored"), rows))
    return out.tolist()


def _words(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


# 2. Which program reads what


def _programs(s17: Any) -> list[Any]:
    heading("2. Which program reads what")
    if missing := gpu.lacking() or ("" if gpu.INTERPRETED else "needs Triton's interpreter (TRITON_INTERPRET=1)"):
        print(f"Skipped: recording what your kernel reads {missing}.")
        return []
    from kit.programs import Setup, record

    found = []
    for splits in (1, 2):
        setup = Setup(splits=splits)
        recorded = record(s17, setup)
        if splits == 1:
            print(f"{len(setup.lengths)} requests of {', '.join(map(str, setup.lengths))} tokens, blocks of {setup.block_size}; "
                  f"{setup.kv_heads} KV heads, each for {setup.group} query heads; tiles of {setup.tile}\n"
                  f"in place of {TILE}, so that there are several.\n"
                  "Recorded in Triton's interpreter from the addresses that your kernel loads keys from.\n")  # fmt: skip
        rows = [
            (*program, _words(recorded.blocks_of(program)) or "none", recorded.tokens_of(program))
            for program in recorded.programs
        ]
        if splits == 1:
            print(table(("request", "KV head", "split", "blocks, in order", "keys read"), rows))
        read, wrong = sum(recorded.tokens_of(program) for program in recorded.programs), recorded.strays
        stored = sum(setup.lengths) * setup.kv_heads
        print(f"\nIn {splits} split{'s' * (splits > 1)}: {len(recorded.programs)} programs, "
              f"{recorded.longest} tile{'s' * (recorded.longest > 1)} the most for one; {read} keys read of {stored} stored, "
              f"{wrong} that must not be.")  # fmt: skip
        found.append({"splits": splits, "programs": rows, "read": read, "strays": wrong})
    return found


# 3. Six numbers


class Sums(NamedTuple):
    """What an online softmax knows after a tile. shrink: what the sums so far were multiplied with; weights: the tile's own."""

    peak: float
    shrink: float
    weights: list[float]
    total: float
    acc: float

    @property
    def result(self) -> float:
        return self.acc / self.total


def online(scores: Sequence[float], values: Sequence[float], tile: int, rescale: bool = True) -> Iterator[Sums]:
    """A softmax of scores (in units of log2), times values, `tile` at a time. rescale=False makes the usual mistake."""
    peak, total, acc = -math.inf, 0.0, 0.0
    for at in range(0, len(scores), tile):
        new = max(peak, *scores[at : at + tile])
        shrink = 2.0 ** (peak - new) if rescale else 1.0
        weights = [2.0 ** (score - new) for score in scores[at : at + tile]]
        total = total * shrink + sum(weights)
        acc = acc * shrink + sum(weight * value for weight, value in zip(weights, values[at : at + tile]))
        peak = new
        yield Sums(peak, shrink, weights, total, acc)


def _by_hand() -> list[Any]:
    heading("3. Six numbers, two at a time")
    print(f"Scores {_words(SCORES)}; values {_words(VALUES)}. What is wanted: the values, weighted by 2 ** score.\n")
    steps = list(online(SCORES, VALUES, 2))
    rows = [
        (f"{_words(SCORES[2 * i : 2 * i + 2])}", f"{s.peak:g}", f"{s.shrink:g}", _words(s.weights), f"{s.total:g}", f"{s.acc:g}",
         f"{s.result:.3f}")
        for i, s in enumerate(steps)
    ]  # fmt: skip
    print(table(("tile", "peak", "shrink", "weights", "total", "acc", "acc / total"), rows))
    (whole,) = online(SCORES, VALUES, 6)
    wrong = list(online(SCORES, VALUES, 2, rescale=False))[-1]
    print(
        f"\nAll six at once: {whole.result:.3f}. Without `shrink`: {wrong.result:.3f}, as plausible a number as any between "
        f"{min(VALUES)} and {max(VALUES)}."
    )
    return [step._asdict() for step in steps]


# 4. A request, tile by tile


@dataclass(frozen=True)
class Request:
    """One query head of one request in a shuffled pool: query, keys and values by slot, and its block table."""

    length: int
    block_size: int
    blocks: list[int]
    num_blocks: int
    query: list[float]
    keys: dict[int, list[float]]  # slot -> key, for what is stored; a slot that is missing can't be read
    values: dict[int, list[float]]

    def slot(self, position: int) -> int:
        return self.blocks[position // self.block_size] * self.block_size + position % self.block_size


@lru_cache
def request_of(length: int, block_size: int, seed: int = 30) -> Request:
    """A request with random numbers; with this seed each of the first three tiles brings a new peak."""
    rng = random.Random(seed)
    owned = -(-length // block_size)
    names = rng.sample(range(2 * owned + 2), owned)
    one = Request(length, block_size, names, 2 * owned + 2, [number / 2 for number in _normal(rng)], {}, {})
    for position in range(length):
        one.keys[one.slot(position)], one.values[one.slot(position)] = _normal(rng), _normal(rng)
    return one


def _normal(rng: random.Random) -> list[float]:
    return [round(64 * rng.gauss(0, 1)) / 64 for _ in range(HEAD_DIM)]  # the same number in 16, 32 and 64 bits


class Step(NamedTuple):
    """A tile of the walk: its positions, the blocks that they lie in, and the sums after it."""

    first: int
    seen: int
    blocks: list[int]
    peak: float
    total: float
    output: list[float]


def walk(one: Request, tile: int = TILE) -> Iterator[Step]:
    """What a program of the kernel does, in plain Python: tile after tile, through the block table, nothing kept but three sums."""
    peak, total, acc = -math.inf, 0.0, [0.0] * HEAD_DIM
    scale = math.log2(math.e) / math.sqrt(HEAD_DIM)
    for first in range(0, one.length, tile):
        slots = [one.slot(position) for position in range(first, min(first + tile, one.length))]
        scores = [scale * sum(a * b for a, b in zip(one.query, one.keys[slot])) for slot in slots]
        new = max(peak, *scores)
        shrink, weights = 2.0 ** (peak - new), [2.0 ** (score - new) for score in scores]
        total = total * shrink + sum(weights)
        acc = [a * shrink + sum(w * one.values[s][d] for w, s in zip(weights, slots)) for d, a in enumerate(acc)]
        peak = new
        blocks = list(dict.fromkeys(slot // one.block_size for slot in slots))
        yield Step(first, len(slots), blocks, peak, total, [a / total for a in acc])


def at_once(one: Request) -> list[float]:
    """The same by the book: all scores, their softmax, the weighted sum."""
    slots = [one.slot(position) for position in range(one.length)]
    scores = [sum(a * b for a, b in zip(one.query, one.keys[slot])) / math.sqrt(HEAD_DIM) for slot in slots]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [sum(w * one.values[s][d] for w, s in zip(weights, slots)) / sum(weights) for d in range(HEAD_DIM)]


def apart(got: Sequence[float], want: Sequence[float]) -> float:
    """Relative difference of two vectors."""
    return math.dist(got, want) / math.hypot(*want)


def tensors_of(one: Request) -> tuple[Any, ...]:
    """A request as the arguments of `paged_decode`, NaN in every slot that it doesn't own."""
    torch, shape = gpu.torch, (one.num_blocks, one.block_size, 1, HEAD_DIM)
    caches = []
    for stored in (one.keys, one.values):
        cache = torch.full(shape, math.nan, dtype=torch.float32)
        for slot, numbers in stored.items():
            cache[slot // one.block_size, slot % one.block_size, 0] = torch.tensor(numbers)
        caches.append(cache.to(gpu.DEVICE))
    ints = {"dtype": torch.int32, "device": gpu.DEVICE}
    query = torch.tensor([[one.query]], dtype=torch.float32, device=gpu.DEVICE)
    return query, *caches, torch.tensor([one.blocks], **ints), torch.tensor([one.length], **ints)


def _walk(args: argparse.Namespace, s17: Any) -> list[Any]:
    heading("4. A request, tile by tile")
    one = request_of(args.tokens, args.block_size)
    print(
        f"{_many(one.length, 'token')} in blocks of {one.block_size}, block table {one.blocks}; tiles of {TILE}, one query head.\n"
    )
    steps = list(walk(one))
    rows = [
        (f"{s.first}-{s.first + s.seen - 1}", _words(s.blocks), f"{s.seen} of {TILE}", f"{s.peak:.3f}", f"{s.total:.3f}",
         f"{s.output[0]:.3f}")
        for s in steps
    ]  # fmt: skip
    print(table(("positions", "blocks", "seen", "peak", "total", "first of 64 outputs so far"), rows))
    want = at_once(one)
    close = "the same to 14 digits" if apart(steps[-1].output, want) < 1e-14 else "NOT the same"
    print(f"\nPlain Python, in float64. Against the softmax over all {one.length} at once: {close}.")
    if gpu.torch is not None:
        error = apart(s17.gathered_attention(*tensors_of(one)).flatten().tolist(), want)
        print(
            f"Your oracle on these numbers: {'the same to 12 digits' if error < 1e-12 else f'NOT right, off by {error:.1e} of it'}."
        )
    if missing := gpu.lacking():
        print(f"Skipped, your kernel on these numbers: it {missing}.")
    else:
        from kit.ragged import TOLERANCE

        error = apart(s17.paged_decode(*tensors_of(one), num_splits=1).flatten().tolist(), want)
        allowed = TOLERANCE["float32"]
        how = f"within {allowed:.0e} of it" if error <= allowed else f"NOT right: off by {error:.1e} of it"
        print(f"Your kernel on these numbers, in float32, NaN in all other slots: {how}.")
    return [step._asdict() for step in steps]


def _many(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


# 5. Enough programs


def _splits(s17: Any) -> list[Any]:
    heading("5. Enough programs")
    print(
        f"Llama-3-8B, 8 KV heads, tiles of {TILE}; an A100 has {A100_PROCESSORS} processors, and the aim is two programs for each.\n"
    )
    rows = []
    for batch, context in ((1, 128), (1, 2048), (1, 32768), (4, 32768), (16, 2048), (27, 2048), (64, 2048)):
        splits = s17.splits_for(batch, 8, context, TILE, A100_PROCESSORS)
        tiles = -(-context // TILE)
        parts = 2 * 4 * batch * 32 * splits * (128 + 1) if splits > 1 else 0  # written, and read again, in float32
        rows.append((batch, context, 8 * batch, splits, 8 * batch * splits, f"{-(-tiles // splits)} of {tiles}",
                     f"{parts / 1e6:.2f}", f"{parts / Decodes(batch, context).kv_bytes:.1%}"))  # fmt: skip
    print(
        table(("batch", "context", "programs", "splits", "programs then", "tiles each", "MB of parts", "of the KV"), rows)
    )
    print("\nThe parts, in float32, are written by one kernel and read by the next. One long request alone would keep 8 of the\n"
          f"{A100_PROCESSORS} processors busy; from 27 requests on nobody has to split.")  # fmt: skip
    return rows


# 6. What a step must move


@dataclass(frozen=True)
class Decodes:
    """Attention of one layer for a step of decodes in 16 bits: `batch` requests with `context` stored tokens each."""

    batch: int
    context: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def kv_bytes(self) -> int:
        return 2 * 2 * self.batch * self.context * self.kv_heads * self.head_dim

    @property
    def moved(self) -> int:
        """Bytes: keys and values once, queries and outputs."""
        return self.kv_bytes + 2 * 2 * self.batch * self.heads * self.head_dim

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each number of q·k, and of weights·v."""
        return 4 * self.batch * self.context * self.heads * self.head_dim

    @property
    def intensity(self) -> float:
        return self.flops / self.moved


def _moved() -> dict[str, Any]:
    from s03_step_cost import A100, H100, LLAMA3_8B, roofline_ms

    heading("6. What a step of decodes must move")
    print("Attention of one layer of Llama-3-8B in bfloat16. The last columns are modelled: the least time that the peaks of an A100\n"
          "and an H100 allow, for the one of bytes and operations that takes longer. No kernel was timed.\n")  # fmt: skip
    rows = []
    for batch, context in ((1, 2048), (16, 2048), (64, 2048), (256, 2048), (1, 32768), (16, 32768)):
        one = Decodes(batch, context)
        floors = [f"{roofline_ms(chip, one.flops, one.moved):.4f}" for chip in (A100, H100)]
        rows.append(
            (batch, context, f"{one.moved / 1e6:,.1f}", f"{one.flops / 1e9:.3f}", f"{one.intensity:.2f}", batch, *floors)
        )
    print(table(("batch", "context", "MB", "GFLOP", "FLOP/byte", "of the matrices", "A100 ms", "H100 ms"), rows))
    print(f"\nA chip is busy computing from {A100.ridge:.0f} FLOP/byte (A100) or {H100.ridge:.0f} (H100) on. A batch brings the matrices "
          "there, and attention\nnever: each request has keys of its own. What counts is how many query heads share one:\n")  # fmt: skip
    shapes = (
        ("Llama-2-7B", 32, 32),
        ("Qwen3-0.6B", 16, 8),
        ("Llama-3-8B", 32, 8),
        ("Llama-3-70B", 64, 8),
        ("one KV head for 16", 16, 1),
    )
    groups = []
    for name, heads, kv_heads in shapes:
        one = Decodes(64, 2048, heads, kv_heads)
        rows_used = heads // kv_heads
        groups.append((name, rows_used, f"{one.intensity:.1f}", f"{one.intensity / A100.ridge:.1%}", f"{rows_used} of 16"))
    print(table(("model", "group", "FLOP/byte", "of the A100's ridge", "rows of a dot in use"), groups))
    one = Decodes(64, 2048)
    print(
        f"\nGathered first, as in s06, the KV is read, written and read again: {3 * one.kv_bytes / 1e6:,.0f} MB in place of "
        f"{one.kv_bytes / 1e6:,.0f} for 64 requests of 2,048."
    )
    weights, kv = 2 * LLAMA3_8B.weights, LLAMA3_8B.kv_bytes
    print(f"All layers of Llama-3-8B: {weights / 1e9:.1f} GB of weights, {kv:,} bytes of KV a token. A step reads as\n"
          f"much KV as weights, or more, from {math.ceil(weights / kv):,} tokens on: {math.ceil(weights / kv / 2048)} requests of 2,048.")  # fmt: skip
    return {"steps": rows, "groups": groups}


# 7. What the compiler makes of it


def compiled(kernel: str) -> tuple[str, list[list[str]], list[list[str]]]:
    """What was stored of a kernel ("decode", "mixed"): the Triton that compiled it, what it uses of each chip, and the hint's effect.

    For the widest of its variants: head size 128, group 4, blocks of 16.
    """
    text = COMPILED.read_text("utf-8")
    widest = rf"^{kernel}-(\w+)-128-g4-b16 +(\w+) +"
    uses = re.findall(widest + r"(\d+) +(\d+) +\d+ +([\d,]+)$", text, re.M)
    hints = re.findall(widest + r"(with|without) +(\d+) +(\d+) +(\d+) bytes +(\d+) +(\d+)$", text, re.M)
    return text.split()[1].rstrip(":"), [list(row) for row in uses], [list(row) for row in hints]


def print_compiled(kernel: str) -> dict[str, Any]:
    """Print what was stored of a kernel; returns it."""
    version, uses, hints = compiled(kernel)
    print(f"Compiled ahead of time, without a GPU, by Triton {version} (bench/kernels.txt): head size 128, group 4, blocks of 16. This says\n"
          "that it compiles and what it uses, not that it is right or fast.\n")  # fmt: skip
    print(table(("type", "chip", "registers", "spilled", "bytes of shared memory"), uses))
    print("\nregisters: a thread's. spilled: bytes a thread on NVIDIA, registers on AMD. Shared memory: a thread block's.")
    print("\nWith and without the hint that pointers and the table's width are multiples of 16:\n")
    print(table(("type", "chip", "hint", "registers", "spilled", "bytes a load", "loads", "of these async"), hints))
    return {"triton": version, "uses": uses, "hints": hints}


def _compiled() -> dict[str, Any]:
    heading("7. What the compiler makes of it")
    found = print_compiled("decode")
    merges = re.findall(r"^reduce-bf16-128-s(\d+) +sm_80 +(\d+) +(\d+) ", COMPILED.read_text("utf-8"), re.M)
    print("\nThe kernel that merges, bf16 on sm_80, holds all parts at once:\n")
    print(table(("parts", "registers", "spilled"), merges))
    return {**found, "merges": merges}


# The picture of section 6


def roofline() -> str:
    """Decode attention and the matrices of the same step under the roofs of two data sheets. Computed, not measured."""
    from s03_step_cost import A100, H100

    from kit.roofline import BLUE, GREEN, INK, ORANGE, SOFT, Axes, page

    axes = Axes(60, 40, 660, 300, (0.5, 1024), (0.5, 1500), log=True)
    axes.ticks((1, 4, 16, 64, 256, 1024), (1, 10, 100, 1000), "FLOP per byte moved", "TFLOP/s that a data sheet allows")
    for chip, tint in ((A100, BLUE), (H100, GREEN)):
        roof = [(x, min(chip.flops_per_s, x * chip.bytes_per_s) / 1e12) for x in (0.5, chip.ridge, 1024)]
        axes.line(roof, tint)
        x, y = axes.at(1024, roof[-1][1])
        axes.text(x - 4, y - 6, f"{chip.name}, from {chip.ridge:.0f} on", 12, tint, "end")
    for name, heads, kv_heads in (("no sharing", 32, 32), ("Llama-3-8B: 4 share", 32, 8), ("16 share", 16, 1)):
        one = Decodes(64, 2048, heads, kv_heads)
        height = one.intensity * A100.bytes_per_s / 1e12
        axes.dot(one.intensity, height, ORANGE, 6, f"attention, {one.intensity:.1f} FLOP/byte")
        x, y = axes.at(one.intensity, height)
        axes.text(x + 10, y + 14, name, 12, INK)
    for batch in (1, 16, 64, 256):
        height = min(A100.flops_per_s, batch * A100.bytes_per_s) / 1e12
        axes.dot(batch, height, SOFT, 4, f"matrices, batch {batch}")
        x, y = axes.at(batch, height)
        axes.text(x - 8, y - 8, f"batch {batch}", 11, SOFT, "end")
    for i, (tint, words) in enumerate(
        ((ORANGE, "decode attention, at any batch and context"), (SOFT, "matrices, by batch"))
    ):
        axes.parts.append(f"<circle cx='{270 + i * 290}' cy='{320}' r='5' fill='{tint}'/>")
        axes.text(280 + i * 290, 324, words, 12)
    return page(
        390, "Decode attention stays far left of the ridge, whatever the batch; the matrices move right with it", axes.parts
    )

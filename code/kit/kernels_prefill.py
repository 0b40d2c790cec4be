"""What s18 shows when it runs: slots, programs and keys of a step, the kernel against float64, the engine's own batches, the roofline.

The shape of the file: the main job; then its sections in order; `Prefill`, what a chunk must compute and move.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kit import gpu, options
from kit.config import Config
from kit.errors import BadRequest, CourseError
from kit.reach import OutOfReach
from kit.report import heading, table
from kit.request import Request

PROMPTS = (
    "Once upon a time there was a young squirrel",
    "Once upon a time there was a curious fox",
    "The fox said to the bear",
)
NEW = 4  # tokens of each answer: the interpreter takes its time


def prefill(argv: Sequence[str] | None, s18: Any) -> int:
    """The main job of s18; s18: the lesson, as a module."""

    def script() -> int:
        args = options.parse("s18_triton_prefill", argv)
        gpu.need("s18", kernels=False)
        gpu.torch.set_num_threads(1)
        if args.prompt is not None:
            return _own_story(args, s18)
        data = {
            "slots": _slots(s18),
            "programs": _programs(s18),
            "keys": _keys(),
            "errors": _errors(s18),
            "engine": _engine(s18),
            "roofline": _roofline(),
            "compiled": _compiled(),
        }
        options.json_out(args, data)
        return 0

    def told() -> int:
        try:
            return script()
        except Exception as error:  # Triton wraps what a kernel raises
            if not isinstance(error.__cause__, OutOfReach):
                raise
            raise CourseError(
                f"a kernel's {error.__cause__}. `python3 course.py check s18` says which piece is meant"
            ) from None

    return options.run(told)


def _missing() -> str:
    """Why no kernel can be launched here, as a line; empty if one can."""
    missing = gpu.lacking()
    return f"Skipped: s18 {missing}." if missing else ""


# 1. Where keys and values go


def _slots(s18: Any) -> list[Any]:
    heading("1. Where keys and values go")
    torch = gpu.torch
    slots = [9, 2, 3, -1, 14, -1]
    print(f"Six tokens, 2 KV heads of size 4, a pool of 4 blocks of 4; slots {slots}. Token t has the key t.0 for its first\n"
          "head and t.1 for its second; a dot is a place that nobody has stored.\n")  # fmt: skip
    if missing := _missing():
        print(missing)
        return []
    heads = torch.arange(2)[None, :, None] / 10
    k = (torch.arange(6)[:, None, None] + heads).expand(-1, -1, 4).contiguous().to(gpu.DEVICE)
    caches = [torch.full((4, 4, 2, 4), math.nan, device=gpu.DEVICE) for _ in range(2)]
    s18.write_kv(*caches, k, k, torch.tensor(slots, device=gpu.DEVICE))
    held = caches[0].mean(-1).tolist()
    rows = [
        (block, *(" ".join("." if math.isnan(x) else f"{x:.1f}" for x in place) for place in places))
        for block, places in enumerate(held)
    ]
    print(table(("block", "place 0", "place 1", "place 2", "place 3"), rows))
    print("\nTokens 3 and 5 have the slot -1, and are nowhere.")
    return slots


# 2. Which program computes what


def _programs(s18: Any) -> list[Any]:
    from kit.tiles import Setup, record

    heading("2. Which program computes what")
    setup = Setup()
    recorded = record(s18, setup)
    how = (
        "Worked out by hand."
        if recorded.by_hand
        else "Recorded in Triton's interpreter from what your kernel loads and stores."
    )
    print("A step of four requests: A and D decode, B brings a prompt of 6, C the next 9 tokens behind 24 stored ones.\n"
          f"query_start_loc {setup.starts}, lengths {setup.lengths}; {setup.queries} queries and {setup.tile} keys a tile, blocks of "
          f"{setup.block_size}.\n{how}\n")  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for program in recorded.programs:
        if not program.rows:
            rows.append((program.number, "none", "", "", "", "", ""))
            continue
        i, first = setup.owners[program.rows[0]]
        last = setup.owners[program.rows[-1]][1]
        keys, (pairs, seen) = recorded.keys(program), recorded.pairs(program)
        blocks = {slot // setup.block_size for slot in program.slots}
        rows.append((program.number, setup.requests[i][0], _span(program.rows[0], program.rows[-1]), _span(first, last),
                     f"{_span(keys[0], keys[-1])} in {len(blocks)}" if keys else "none", len(program.tiles), f"{seen} of {pairs}"))  # fmt: skip
    print(table(("number", "request", "rows", "positions", "keys in blocks", "tiles of keys", "pairs seen"), rows))
    work = sum(bool(program.rows) for program in recorded.programs)
    stored = sorted(row for program in recorded.programs for row in program.stored)
    whole = "each row stored once" if stored == list(range(setup.starts[-1])) else f"rows stored: {stored}"
    print(f"\n{len(recorded.programs)} numbers a KV head for {setup.starts[-1]} tokens; {work} have work; {whole}.")
    print("Pairs: the rows times the keys read (values are not watched), and how many of these should be seen, from the positions:\n"
          "your `causal` is not asked. A dot computes whole tiles, which section 3 counts: for number 3 that is 4 x 32 = 128.")  # fmt: skip
    return rows


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


# 3. What the mask leaves


def pairs(new: int, stored: int, queries: int, tile: int) -> tuple[int, int, int]:
    """Pairs of a query and a key: if each tile of queries reads all of its request; if it reads up to its last query; that are seen.

    In whole tiles of keys, as a dot computes them; each tile of queries counts as `queries`, full or not.
    """
    every = up_to = 0
    for first in range(0, new, queries):
        every += queries * -(-(stored + new) // tile) * tile
        up_to += queries * -(-(stored + min(first + queries, new)) // tile) * tile
    return every, up_to, sum(stored + j + 1 for j in range(new))


def _keys() -> list[Any]:
    heading("3. What the mask leaves")
    print("Pairs of a query and a key, 8 queries and 64 keys a tile: computed, if every tile read its whole request; computed, up\n"
          "to the tile's last query; and seen.\n")  # fmt: skip
    rows = []
    for name, chunks, stored in (("a prompt of 64", [64], 0), ("a prompt of 512", [512], 0), ("in chunks of 64", [64] * 8, 0),
                                 ("in chunks of 20", [20] * 25 + [12], 0), ("a prompt of 4,096", [4096], 0),
                                 ("a decode behind 4,095", [1], 4095)):  # fmt: skip
        every = up_to = seen = 0
        for new in chunks:
            found = pairs(new, stored, 8, 64)
            every, up_to, seen = every + found[0], up_to + found[1], seen + found[2]
            stored += new
        rows.append((name, f"{every:,}", f"{up_to:,}", f"{seen:,}", f"{seen / up_to:.1%}"))
    print(table(("", "whole request", "up to the last query", "seen", "of those computed"), rows))
    print("\nBy `keys_for` a long prompt reads half, and chunks of whole tiles read what the prompt in one piece reads. What is still\n"
          "computed for nothing is the diagonal, the tiles in which the mask runs; and, for a decode beside a prompt, the seven\n"
          "queries that its tile has no use for.")  # fmt: skip
    return rows


# 4. Against float64


def _errors(s18: Any) -> list[Any]:
    heading("4. Against float64")
    print("Ragged batches with shuffled tables, a shared prefix, NaN in every slot that must not be read, and an output full of\n"
          "poison; relative error, ||kernel - float64|| / ||float64||.\n")  # fmt: skip
    if missing := _missing():
        print(missing)
        return []
    from kit.ragged import TOLERANCE, poisoned, ragged, verdict

    rows = []
    shape: dict[str, Any] = {"num_kv_heads": 1, "group": 4, "shared": 1}
    for dtype, bound in TOLERANCE.items():
        for what, lengths, counts in (
            ("four decodes", [1, 16, 70, 33], None),
            ("mixed", [33, 1, 21, 40, 0], [9, 1, 21, 1, 0]),
        ):
            batch = ragged(0, lengths, counts, dtype=dtype, **shape)
            with poisoned():
                found = verdict(s18.paged_attention(*batch.mixed), batch, tile=64)
            rows.append((dtype, what, f"{bound:.0e}", "yes" if not found.wrong else f"NO: {found.cause}"))
    print(table(("type", "batch", "allowed", "within"), rows))
    return rows


# 5. The engine's own batches


def models() -> tuple[Any, Any]:
    """TinyLM in NumPy, in float64, and in torch."""
    from kit.tinylm import TinyLM
    from kit.torch_tinylm import TorchTinyLM

    model = TinyLM.load(dtype="float64")
    return model, TorchTinyLM(model)


def requests_of(model: Any, new: int = NEW) -> list[Request]:
    return [Request(f"r{i}", model.encode(text), new, i * 20_000_000) for i, text in enumerate(PROMPTS)]


SMALL: dict[str, Any] = {"max_num_batched_tokens": 8, "max_num_seqs": 3, "block_size": 4}


def schedulers() -> dict[str, Callable[[], Any]]:
    """The two runs of the script: a name -> a fresh scheduler."""
    from s11_chunked_prefill import ChunkedScheduler
    from s14_unified_scheduler import UnifiedScheduler

    four = Config(**SMALL, num_blocks=4, prefix_caching=True)
    return {
        "s11, 30 blocks": lambda: ChunkedScheduler(Config(**SMALL, num_blocks=30)),
        "s14, four blocks": lambda: UnifiedScheduler(four, safe=True),
    }


def served(scheduler: Any, runner: Any, requests: Sequence[Request]) -> list[Any]:
    """Run requests to their end, and return what each step computed: the batches."""
    from s08_static_batching import Engine

    engine, batches = Engine(scheduler, runner, requests), []
    while any(request.finish_reason is None for request in requests):
        batches.append(engine.step())
        if len(batches) > 400:
            raise BadRequest(
                "400 steps, and the stories are not told: does execute() return a token for those that caught up?"
            )
    return batches


def _engine(s18: Any) -> list[Any]:
    heading("5. The engine's own batches")
    print("Three stories, four new tokens each, budget 8, blocks of 4: TinyLM in torch, float32, its attention in your two kernels,\n"
          "against s06's PagedRunner in NumPy, float64.\n")  # fmt: skip
    if missing := _missing():
        print(missing)
        return []
    from s06_paged_attention import PagedRunner

    model, torch_model = models()
    rows: list[tuple[Any, ...]] = []
    steps: list[Any] = []
    texts: list[str] = []
    for name, make in schedulers().items():
        mine, theirs, scheduler = requests_of(model), requests_of(model), make()
        blocks = scheduler.config.num_blocks
        batches = served(scheduler, s18.TorchRunner(torch_model, blocks, 4), mine)
        served(make(), PagedRunner(model, blocks, 4), theirs)
        same = sum(one == other for a, b in zip(mine, theirs) for one, other in zip(a.output, b.output))
        total = sum(len(request.output) for request in theirs)
        chunks = sum(n > 1 for batch in batches for n in batch.tokens.values())
        hits = sum(sum(getattr(batch, "hits", {}).values()) for batch in batches)
        evicted = sum(len(batch.preempted) for batch in batches)
        rows.append(
            (name, len(batches), sum(sum(b.tokens.values()) for b in batches), chunks, hits, evicted, f"{same} of {total}")
        )
        steps, texts = steps or batches, texts or [model.decode([*r.prompt, *r.output]) for r in mine]
    print(table(("batches of", "steps", "tokens computed", "chunks", "hit tokens", "evictions", "tokens as NumPy's"), rows))
    print("\nThe first steps of s11's; 2 KV heads, 16 queries a tile:\n")
    shown = []
    for number, batch in enumerate(steps[:6], 1):
        new = list(batch.tokens.values())
        tiles = s18.num_tiles(sum(new), len(new), 16 if max(new) > 1 else 8)
        shown.append((number, " ".join(f"{request.id}+{n}" for request, n in batch.tokens.items()), sum(new), 2 * tiles))
    print(table(("step", "computes", "tokens", "attention programs a layer"), shown))
    print()
    for text in texts:
        print(f"  {text} …")
    return rows


def _own_story(args: argparse.Namespace, s18: Any) -> int:
    """One story, its prompt cut into chunks of the budget, from the two kernels."""
    gpu.need("s18")
    from s11_chunked_prefill import ChunkedScheduler

    from kit.stories import alone

    model, torch_model = models()
    prompt, limit = model.encode(args.prompt), model.config.max_model_len
    if len(prompt) >= limit:
        raise BadRequest(f"the prompt has {len(prompt)} tokens, the model takes {limit}: nothing is left for an answer")
    request = Request("A", prompt, min(args.max_tokens, limit - len(prompt)), 0, 0, frozenset([model.eos_id]))
    config = Config(max_num_batched_tokens=args.budget, max_num_seqs=1, num_blocks=limit // 16 + 2)
    batches = served(ChunkedScheduler(config), s18.TorchRunner(torch_model, config.num_blocks), [request])
    print(textwrap.fill(model.decode([*prompt, *request.output]), 100, initial_indent="  ", subsequent_indent="  "))
    same = request.output == alone(model, prompt, request.max_tokens)
    chunks = [n for batch in batches for n in batch.tokens.values()]
    print(f"\n{len(request.output)} tokens, {'the same' if same else 'NOT the same'} as NumPy's from one contiguous cache; "
          f"prompt of {len(prompt)}, computed in steps of {' '.join(map(str, chunks))}.")  # fmt: skip
    options.json_out(args, {"tokens": request.output, "steps": chunks, "same": same})
    return 0


# 6. On the roofline


@dataclass(frozen=True)
class Prefill:
    """Attention of one layer of Llama-3-8B in 16 bits: `new` tokens of one request behind `stored` ones. queries: a tile."""

    new: int
    stored: int
    queries: int = 8
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def flops(self) -> int:
        """Of the pairs that are seen: a multiplication and an addition for each number of q·k, and of weights·v."""
        return 4 * self.heads * self.head_dim * sum(self.stored + j + 1 for j in range(self.new))

    @property
    def ends(self) -> int:
        """Bytes of queries and outputs."""
        return 2 * 2 * self.new * self.heads * self.head_dim

    @property
    def once(self) -> int:
        """Bytes, if keys and values were read once for all queries."""
        return self.ends + self._kv(self.stored + self.new)

    @property
    def by_tile(self) -> int:
        """Bytes, if each tile of queries reads its keys and values from memory again."""
        starts = range(0, self.new, self.queries)
        return self.ends + self._kv(sum(self.stored + min(first + self.queries, self.new) for first in starts))

    def _kv(self, tokens: int) -> int:
        return 2 * 2 * tokens * self.kv_heads * self.head_dim


def _roofline() -> list[Any]:
    from s03_step_cost import A100, H100

    heading("6. On the roofline")
    print("Attention of one layer of Llama-3-8B in bfloat16, one request, `new` tokens behind `stored` ones. FLOPs of the pairs seen\n"
          "over bytes: keys and values read once for all queries, or again for every tile of 8 queries. No kernel was timed.\n")  # fmt: skip
    rows = []
    for new, stored in ((1, 2047), (8, 2040), (64, 1984), (512, 1536), (2048, 0), (512, 7680)):
        one = Prefill(new, stored)
        rows.append((new, stored, f"{one.flops / 1e9:.3f}", f"{one.once / 1e6:.1f}", f"{one.flops / one.once:,.0f}",
                     f"{one.by_tile / 1e6:.1f}", f"{one.flops / one.by_tile:,.0f}"))  # fmt: skip
    print(table(("new", "stored", "GFLOP", "MB once", "FLOP/byte", "MB by tile", "FLOP/byte by tile"), rows))
    print(f"\nThe ridge is at {A100.ridge:.0f} FLOP/byte on an A100, at {H100.ridge:.0f} on an H100. Reuse is what a chunk has and a decode "
          "has not:\nread once, 64 queries are beyond the A100's ridge. But 8 queries x 4 heads are 32 rows to a key, hence at most 32\n"
          "FLOP/byte if nobody keeps what the neighbour has just read. A cache between memory and processors may.")  # fmt: skip
    return rows


# 7. What the compiler makes of it


def _compiled() -> list[Any]:
    from kit.kernels import compiled

    heading("7. What the compiler makes of it")
    version, uses, _ = compiled("mixed")
    print(f"attention_kernel, compiled ahead of time, without a GPU, by Triton {version} (bench/kernels.txt): head size 128, group 4,\n"
          "blocks of 16. Shared memory in bytes.\n")  # fmt: skip
    print(table(("type", "chip", "registers", "spilled", "shared memory"), uses))
    return uses


def figure(s03: Any) -> str:
    """Decodes and chunks under the roof of an A100, read once and read tile by tile."""
    from kit.roofline import BLUE, INK, ORANGE, SOFT, WIDTH, Axes, page

    chip = s03.A100
    axes = Axes(70, 62, WIDTH - 100, 290, (1, 5000), (1, 600), log=True)
    peak = chip.flops_per_s / 1e12
    axes.text(16, 24, f"Attention of a layer under the roof of an {chip.name}: the most that bytes and peaks allow", 15)
    axes.ticks((1, 10, 100, 1000), (1, 10, 100), "FLOPs per byte moved", "TFLOP/s at most")
    axes.line([(1, chip.bytes_per_s / 1e12), (chip.ridge, peak), (5000, peak)], INK)
    axes.line([(chip.ridge, 1), (chip.ridge, peak)], SOFT, "stroke-dasharray='4 4'")
    shown = [("a decode", Prefill(1, 2047))]
    shown += [(f"chunk of {n}", Prefill(n, 2048 - n)) for n in (8, 64, 512)] + [("prompt of 2,048", Prefill(2048, 0))]
    for colour, r in ((ORANGE, 8), (BLUE, 4)):
        for name, one in shown:
            x = one.flops / (one.by_tile if colour == ORANGE else one.once)
            y = min(peak, x * chip.bytes_per_s / 1e12)
            axes.dot(x, y, colour, r, f"{name}: {x:.0f} FLOP/byte")
            if colour == BLUE:
                left, top = axes.at(x, y)
                axes.text(left + (-8 if one.new > 64 else 6), top + (38 if one.new > 512 else 20), name, 12, BLUE)
            elif one.new == 8:
                left, top = axes.at(x, y)
                axes.text(left - 12, top - 8, "all chunks from 8 on, by tile", 12, INK, "end")
    words = "Blue: keys and values read once. Orange: again for each tile of 8 queries, which stops at 32 FLOP/byte."
    axes.text(16, 414, words, 12)
    return page(428, "Prefill attention on the roofline of an A100", axes.parts)

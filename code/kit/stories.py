"""Real text from the schedulers: `--model tiny` of s08, s09 and s10, and the main job of s06.

NumPy is needed here, and nothing else of the course imports this module unless a model is asked for.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from kit import options
from kit.config import Config
from kit.errors import BadRequest
from kit.experiments import label
from kit.report import heading, table
from kit.request import Request
from kit.tinylm import TinyLM, np

DTYPE = "float64"  # two ways to compute the same scores differ by 1e-13 there: no token hangs on rounding
PROMPTS = (
    "Once upon a time",
    "Long ago, a little",
    "Once upon a time there was a young squirrel",
    "There was once a",
    "Long ago, a clever",
    "There was once a curious fox named",
)
NEW = 60  # tokens of an answer, at most


def requests_of(model: TinyLM, prompts: Iterable[str] = PROMPTS, new: int = NEW) -> list[Request]:
    """A request for each beginning of a story, 20 ms apart, priorities 0, 1, 2 in turn. Raises BadText."""
    end = frozenset([model.eos_id])
    return [
        Request(f"r{i}", model.encode(text), new, i * 20_000_000, i % 3, end, []) for i, text in enumerate(prompts)
    ]  # fmt: skip


def alone(model: TinyLM, prompt: Sequence[int], new: int) -> list[int]:
    """The greedy answer of a request that has the model to itself, in a contiguous cache: what every schedule must give."""
    output: list[int] = []
    cache, feed = model.new_cache(len(prompt) + new), list(prompt)
    while len(output) < new and model.eos_id not in output:
        output.append(int(model.step([(cache, feed)])[0].argmax()))
        feed = output[-1:]
    return output


class OwnBlocks:
    """A runner for schedulers that know no memory (s08, s09): hands out blocks itself, and takes them back from the finished."""

    def __init__(self, runner: Any, num_blocks: int):
        from s05_paged_blocks import BlockPool

        self.runner, self.pool = runner, BlockPool(num_blocks, runner.block_size)
        self.held: list[Request] = []

    def execute(self, batch: Any) -> Any:
        for request in self.held:
            if request.finish_reason is not None:
                self.pool.free(reversed(request.blocks))
                request.blocks = []
        self.held = list(batch.tokens)
        for request in self.held:
            self.pool.grow(request, 0)  # schedule() has moved num_computed_tokens: they are counted there
        return self.runner.execute(batch)


class CpuBlocks:
    """A runner that executes swaps first: it copies KV from block to block, out to an array in place of the CPU's memory, and back.

    The arrays are as PagedRunner's: [num_layers, blocks, block_size, num_kv_heads, head_dim]. copies: made so far.
    """

    def __init__(self, runner: Any, cpu_blocks: int):
        from s12_preemption import SwapRunner

        shape = (runner.k.shape[0], cpu_blocks, *runner.k.shape[2:])
        self.runner, self.copies = runner, 0
        self.k, self.v = np.zeros(shape, runner.k.dtype), np.zeros(shape, runner.v.dtype)
        self.block_ns = SwapRunner(runner.cost, block_size=runner.block_size).block_ns

    def execute(self, batch: Any) -> Any:
        for gpu, cpu in batch.blocks_to_swap_out:
            self.k[:, cpu], self.v[:, cpu] = self.runner.k[:, gpu], self.runner.v[:, gpu]
        for cpu, gpu in batch.blocks_to_swap_in:
            self.runner.k[:, gpu], self.runner.v[:, gpu] = self.k[:, cpu], self.v[:, cpu]
        copies = len(batch.blocks_to_swap_out) + len(batch.blocks_to_swap_in)
        self.copies += copies
        tokens, step_ns = self.runner.execute(batch)
        return tokens, step_ns + copies * self.block_ns


def serve(
    model: TinyLM, scheduler: Any, engine: Callable, requests: Sequence[Request], num_blocks: int, block_size: int = 16
) -> Any:
    """Run requests to their end behind a scheduler, with the model as the runner. Returns the Report."""
    from s06_paged_attention import PagedRunner

    runner: Any = PagedRunner(model, num_blocks, block_size)
    if not hasattr(scheduler, "pool"):
        runner = OwnBlocks(runner, num_blocks)
    elif getattr(scheduler, "cpu_pool", None) is not None:
        runner = CpuBlocks(runner, scheduler.cpu_pool.num_blocks)
    return engine(scheduler, runner, requests).run()


def tell(args: argparse.Namespace, scheduler_of: Callable[[Config], Any], engine: Callable) -> int:
    """`--model tiny`: six stories through a scheduler, and whether each is the one that its request gets alone."""
    model = TinyLM.load(dtype=DTYPE)
    limits = {"max_num_batched_tokens": 96, "max_num_seqs": 4, "num_blocks": 20, "block_size": 8}
    limits |= {"cpu_blocks": 10} if args.lesson[:3] == "s12" else {}
    config = options.config_from(args, **limits, max_model_len=model.config.max_model_len)
    scheduler, requests = scheduler_of(config), requests_of(model)
    knows_memory = hasattr(scheduler, "pool")
    # without memory in the scheduler, enough for all who can run together
    blocks = config.num_blocks if knows_memory else len(requests) * -(-model.config.max_model_len // config.block_size)
    report = serve(model, scheduler, engine, requests, blocks, config.block_size)
    print(f"Six stories, up to {NEW} new tokens each, by TinyLM ({model.num_parameters:,} parameters). The text is real; times are\n"
          f"{label()}.")  # fmt: skip
    if knows_memory:
        print(f"budget {config.max_num_batched_tokens:,}, {config.max_num_seqs} seats, {config.num_blocks:,} blocks of "
              f"{config.block_size} ({config.watermark_blocks} kept back), {config.policy}"
              + (f"; {config.cpu_blocks:,} on the CPU" if config.cpu_blocks else ""))  # fmt: skip
    else:
        print(f"{config.max_num_seqs} slots")
    print()
    rows, same = [], 0
    finished = {row.id: row for row in report.rows}
    for request in requests:
        row = finished.get(request.id)
        if row is None or row.first_token_ns is None:
            rows.append((request.id, request.priority, len(request.prompt), len(request.output), "", 0, 0, "not served"))
            continue
        is_same = request.output == alone(model, request.prompt, request.max_tokens)
        same += is_same
        rows.append((request.id, request.priority, row.prompt_tokens, row.output_tokens, round(row.ttft_ms), row.preemptions,
                     row.recomputed_tokens, "the same" if is_same else "NOT the same"))  # fmt: skip
    headers = ("request", "priority", "prompt", "new tokens", "TTFT ms", "evictions", "recomputed", "as alone")
    print(table(headers, rows))
    print(f"\n{same} of {len(requests)} have the tokens that they get alone; {report.num_steps} steps.\n")
    for request in requests:
        if request.output:
            text = model.decode([*request.prompt, *request.output])
            more = "" if request.output[-1] == model.eos_id else " …"
            print(textwrap.fill(f"{request.id}  {text}{more}", 100, subsequent_indent="    "))
    for problem in [*(str(error) for _, error in report.refused), *report.errors, report.diagnosis]:
        if problem:
            print(f"\n{problem}")
    options.json_out(args, {request.id: request.output for request in requests})
    return 0


# s06 ----------------------------------------------------------------------------------------------------------------


def paged(argv: Sequence[str] | None, runner_of: Callable, flatten: Callable, slot_mapping: Callable) -> int:
    """The main job of s06."""

    def script() -> int:
        args = options.parse("s06_paged_attention", argv)
        model = TinyLM.load(dtype=DTYPE)
        if args.prompt is not None:
            return _own_story(args, model, runner_of)
        return _paged(args, model, runner_of, flatten, slot_mapping)

    return options.run(script)


class Bench:
    """A pool and a runner, driven by hand. Every slot that nobody has written is NaN, and the free list is shuffled."""

    def __init__(self, model: TinyLM, runner_of: Callable, num_blocks: int, block_size: int, seed: int = 0):
        from s05_paged_blocks import BlockPool

        self.model, self.pool, self.runner = (
            model,
            BlockPool(num_blocks, block_size),
            runner_of(model, num_blocks, block_size),
        )
        Random(seed).shuffle(self.pool.free_blocks)
        self.runner.k[:] = self.runner.v[:] = np.nan
        self.steps = self.computed = 0

    def batch(self, *parts: tuple[Request, int]) -> Any:
        """What a scheduler would hand over: blocks are there, `num_computed_tokens` is moved."""
        for request, n in parts:
            self.pool.grow(request, n)
            request.num_computed_tokens += n
        return SimpleNamespace(tokens=dict(parts))

    def step(self, *parts: tuple[Request, int]) -> None:
        batch = self.batch(*parts)
        tokens, _ = self.runner.execute(batch)
        self.steps += 1
        self.computed += sum(batch.tokens.values())
        for request, _ in parts:
            request.output += tokens.get(request.id, [])
            request.num_tokens = len(request.prompt) + len(request.output)

    def over(self, request: Request) -> bool:
        return len(request.output) >= request.max_tokens or self.model.eos_id in request.output

    def to_end(self, *requests: Request) -> None:
        """All compute what they are behind by, until each is done."""
        while live := [request for request in requests if not self.over(request)]:
            self.step(*((request, request.num_tokens - request.num_computed_tokens) for request in live))


def _own_story(args: argparse.Namespace, model: TinyLM, runner_of: Callable) -> int:
    """One story from a shuffled pool, with the user's own prompt and block size."""
    prompt, limit = model.encode(args.prompt), model.config.max_model_len
    if len(prompt) >= limit:
        raise BadRequest(f"the prompt has {len(prompt)} tokens, the model takes {limit}: nothing is left for an answer")
    request = Request("A", prompt, min(args.max_tokens, limit - len(prompt)))
    bench = Bench(model, runner_of, -(-limit // args.block_size) + 3, args.block_size)
    bench.to_end(request)
    print(textwrap.fill(model.decode([*prompt, *request.output]), 100, initial_indent="  ", subsequent_indent="  "))
    same = request.output == alone(model, prompt, request.max_tokens)
    print(f"\n{len(request.output)} tokens, {'the same' if same else 'NOT the same'} as from one contiguous cache; "
          f"{request.num_computed_tokens} stored in {len(request.blocks)} blocks of {args.block_size}: {request.blocks}")  # fmt: skip
    options.json_out(args, {"tokens": request.output, "blocks": request.blocks, "same": same})
    return 0


def _paged(args: argparse.Namespace, model: TinyLM, runner_of: Callable, flatten: Callable, slot_mapping: Callable) -> int:
    text_of = model.tokenizer.text_of
    data: dict[str, Any] = {}

    heading("1. From a token to its slot")
    prompt, size, blocks = model.encode(PROMPTS[2]), 4, [7, 2, 5]
    slots = slot_mapping(blocks, 0, len(prompt), size)
    print(f"A prompt of {len(prompt)} tokens, blocks of {size}, block table {blocks}.\n")
    rows = [
        (p, repr(text_of(token)), p // size, slot // size, slot % size, slot)
        for p, (token, slot) in enumerate(zip(prompt, slots))
    ]
    print(table(("position", "token", "table entry", "block", "place", "slot"), rows))

    heading("2. A mixed batch as one flat list")
    bench = Bench(model, runner_of, 12, 4)
    a, b, c = (Request(name, model.encode(PROMPTS[i]), NEW) for name, i in zip("ABC", (0, 1, 2)))
    bench.step((a, len(a.prompt)), (c, 5))
    bench.step((a, 1))
    batch = bench.batch((a, 1), (b, len(b.prompt)), (c, 3))
    flat = flatten(batch, 4)
    print(f"A makes its third token, B computes its prompt, C the next three of {len(c.prompt)}; blocks of 4.\n")
    owners = [request.id for request, n in batch.tokens.items() for _ in range(n)]
    print(table(("row", "request", "token", "position", "slot"),
                [(i, owner, repr(text_of(token)), position, slot) for i, (owner, token, position, slot) in
                 enumerate(zip(owners, flat.tokens, flat.positions, flat.slot_mapping))]))  # fmt: skip
    print(
        f"\n  query_start_loc  {flat.query_start_loc}\n  seq_lens         {flat.seq_lens}\n  block_tables     {flat.block_tables}"
    )

    heading("3. The same story")
    want = alone(model, model.encode(PROMPTS[0]), 200)
    rows3 = []
    for size in (1, 4, 16):
        bench = Bench(model, runner_of, 200 // size + 5, size)
        request = Request("A", model.encode(PROMPTS[0]), 200)
        bench.to_end(request)
        scattered = sum(one + 1 != other for one, other in zip(request.blocks, request.blocks[1:]))
        same = "the same" if request.output == want else "NOT the same"
        rows3.append((size, len(request.blocks), scattered, len(request.output), same))
    print("The story of s02, its KV in blocks of a shuffled pool; NaN in every slot that nobody has written.\n")
    print(table(("block size", "blocks", "jumps", "tokens", "against s02's cache"), rows3))
    data["same_story"] = [row[-1] == "the same" for row in rows3]

    heading("4. What padding would compute")
    rows4 = []
    for name, parts in (("32 decodes", [1] * 32), ("31 decodes, a prompt of 500", [1] * 31 + [500]),
                        ("eight prompts, 20 to 400", [20, 35, 60, 80, 120, 180, 250, 400])):  # fmt: skip
        total, padded = sum(parts), len(parts) * max(parts)
        rows4.append((name, total, padded, f"{padded / total:.1f}x"))
    print("Tokens of one step as a flat list, and as a rectangle of requests by the longest of them:\n")
    print(table(("step", "flat", "padded", "ratio"), rows4))
    data["padding"] = rows4

    heading("5. Evicted and back")
    bench = Bench(model, runner_of, 16, 4)
    stays, evicted = (Request(name, model.encode(PROMPTS[i]), 24) for name, i in zip("AB", (0, 1)))
    events = []

    def note(what: str) -> None:
        events.append((bench.steps, what, len(evicted.output), evicted.num_computed_tokens, str(evicted.blocks)))

    for _ in range(6):
        bench.step(*((r, r.num_tokens - r.num_computed_tokens) for r in (stays, evicted)))
    note("six steps together")
    bench.pool.release(evicted)
    note("B is evicted")
    for _ in range(4):
        bench.step((stays, 1))
    note("A goes on alone")
    bench.step((stays, 1), (evicted, evicted.num_tokens))
    note("B comes back")
    bench.to_end(stays, evicted)
    note("both are done")
    print(table(("step", "what", "B's tokens", "stored", "B's blocks"), events))
    both = all(r.output == alone(model, r.prompt, 24) for r in (stays, evicted))
    print("\nBoth have the same tokens as alone." if both else "\nThey do NOT both have the tokens they get alone.")
    print(
        textwrap.fill(
            f"B: {model.decode([*evicted.prompt, *evicted.output])} …", 100, initial_indent="  ", subsequent_indent="  "
        )
    )
    data["evicted_is_the_same"] = both
    options.json_out(args, data)
    return 0

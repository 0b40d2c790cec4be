"""What s08 and s09 show when they run: the same eight requests, then the same two hundred."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from kit import options, traces
from kit.report import Report, done, heading, table
from kit.request import Request
from kit.traces import EIGHT_OUTPUTS, EIGHT_SLOTS, eight


def timeline(engine: Any, requests: Sequence[Request], slots: int) -> list[list[str]]:
    """Run a load and say who sat in which slot at each step: one list per slot, "" for an empty one.

    A request takes the lowest free slot when it joins and keeps it until it is done.
    """
    seats: list[Request | None] = [None] * slots
    lanes: list[list[str]] = [[] for _ in range(slots)]
    for _ in range(MOST_STEPS):
        if not (engine.arrivals or engine.scheduler.waiting or engine.scheduler.running):
            break
        batch = engine.step()
        if not batch.tokens:
            continue
        for request in batch.admitted:
            seats[seats.index(None)] = request
        for i, request in enumerate(seats):
            lanes[i].append(request.id if request is not None and request in batch.tokens else "")
        seats = [None if request is None or request.finish_reason else request for request in seats]
    return lanes


MOST_STEPS = 200  # a timeline that goes on for longer is a scheduler that makes no progress


def draw(lanes: Sequence[Sequence[str]]) -> str:
    """The timeline as text: a column a step, a dot for a slot that made nothing."""
    steps = len(lanes[0])
    width = max(2, *(len(cell) for lane in lanes for cell in lane))
    lines = ["  step    " + " ".join(str(step + 1).rjust(width) for step in range(steps))]
    for i, lane in enumerate(lanes):
        lines.append(f"  slot {i}  " + " ".join((cell or "·").rjust(width) for cell in lane))
    return "\n".join(lines)


def label() -> str:
    """What every modelled millisecond stands for."""
    from s03_step_cost import A100_LLAMA3_8B

    return A100_LLAMA3_8B.label


def _busy(lanes: Sequence[Sequence[str]]) -> list[list[int]]:
    """A timeline as `slot_utilisation` wants it: a batch a step, 1 for a slot that made a token."""
    return [[1 if cell else 0 for cell in step] for step in zip(*lanes, strict=True)]


# s08 ----------------------------------------------------------------------------------------------------------------


def static(argv: Sequence[str] | None, batcher: Any, engine: Any, latency: Callable, utilisation: Callable) -> int:
    """The main job of s08."""
    return options.run(lambda: _static(options.parse("s08_static_batching", argv), batcher, engine, latency, utilisation))


def _static(args: argparse.Namespace, batcher: Any, engine: Any, latency: Callable, utilisation: Callable) -> int:
    from s03_step_cost import A100_LLAMA3_8B

    slots = options.config_from(args, max_num_seqs=EIGHT_SLOTS).max_num_seqs
    if args.model:
        return _stories(args, batcher, engine)
    if args.trace:
        return _trace(args, batcher, engine)
    print(f"Every millisecond below is {label()}.")

    heading("1. A closed batch")
    loop = engine(batcher(slots), None, eight())
    lanes = timeline(loop, eight(), slots)
    batches = _busy(lanes)
    print(f"Eight requests, {slots} slots, a dot for a slot that made nothing.\n\n{draw(lanes)}\n")
    print(
        f"{len(batches)} steps, {sum(map(sum, batches))} tokens: {100 * utilisation(batches):.0f} % of the slots were in use."
    )

    heading("2. What a user feels")
    rows = []
    for row in sorted(loop.report.rows, key=lambda row: row.id):
        stamps = [row.arrival_ns, *(loop.report.end_ns[i] for first, last in row.spans for i in range(first, last + 1))]
        felt = latency(stamps)
        rows.append((row.id, row.output_tokens, felt.ttft_ns / 1e6, felt.tpot_ns / 1e6, felt.total_ns / 1e6))
    print(table(("request", "tokens", "TTFT ms", "TPOT ms", "total ms"), rows))
    fifth = next(row for row in rows if row[0] == f"r{slots}") if slots < len(rows) else rows[-1]
    print(f"\n{fifth[0]} gets its first token after {fifth[2]:.0f} ms, though a slot was empty after the second step.")

    heading("3. Slots busy: 1/H_B, and what real lengths do to it")
    print("200 requests, mean of 50 seeds. Exponential lengths should keep 1/H_B of the slots busy, H_B = 1 + 1/2 + … + 1/B;\n"
          "lognormal ones follow the published statistics of two real services.\n")  # fmt: skip
    table3 = []
    for b in (8, 16, 32):
        cells: list[Any] = [b, f"{1 / sum(1 / k for k in range(1, b + 1)):.3f}"]
        for load in (traces.story_f, _conv, _code):
            values = [utilisation(groups([r.max_tokens for r in load(200, seed)], b)) for seed in range(50)]
            cells.append(f"{sum(values) / len(values):.3f}")
        table3.append(cells)
    print(table(("B", "1/H_B", "exponential", "like Azure conv", "like Azure code"), table3))

    heading("4. Slots are not the GPU")
    cost, flops = A100_LLAMA3_8B, 2 * 8.03e9  # two FLOPs for each parameter and token
    rows4 = []
    for n in (1, 4, 16, 64, 256):
        ms = cost.step_ns(n, n * 500) / 1e6
        rows4.append((n, ms, round(n / ms * 1e3), f"{100 * n * flops / (ms / 1e3) / 312e12:.1f}%"))
    print("A decode step with every slot taken, 500 tokens of context each, against the A100's 312 TFLOP/s:\n")
    print(table(("slots", "step ms", "tokens/s", "of peak"), rows4))
    print("\nAll slots busy is a full batch, not a busy GPU: sixteen tokens cost little more than one.")
    options.json_out(args, {"eight": rows, "utilisation": table3, "steps": rows4})
    return 0


def _conv(n: int, seed: int) -> list[Request]:
    return traces.azure_like("conv", n, seed)


def _code(n: int, seed: int) -> list[Request]:
    return traces.azure_like("code", n, seed)


def groups(lengths: Sequence[int], slots: int) -> list[list[int]]:
    """Static batches of these lengths, the last one filled up with empty slots."""
    padded = [*lengths, *[0] * (-len(lengths) % slots)]
    return [padded[i : i + slots] for i in range(0, len(padded), slots)]


# s09 ----------------------------------------------------------------------------------------------------------------


def continuous(argv: Sequence[str] | None, batcher: Any, static_batcher: Any, engine: Any, bound: Callable) -> int:
    """The main job of s09."""
    args = options.parse("s09_continuous_batching", argv)
    return options.run(lambda: _continuous(args, batcher, static_batcher, engine, bound))


def _continuous(args: argparse.Namespace, batcher: Any, static_batcher: Any, engine: Any, bound: Callable) -> int:
    slots = options.config_from(args, max_num_seqs=EIGHT_SLOTS).max_num_seqs
    if args.model:
        return _stories(args, batcher, engine)
    if args.trace:
        return _trace(args, batcher, engine)
    print(f"Every millisecond below is {label()}.")

    heading("1. The same eight requests")
    lanes = timeline(engine(batcher(slots), None, eight()), eight(), slots)
    before = timeline(engine(static_batcher(slots), None, eight()), eight(), slots)
    print(draw(lanes))
    print(f"\n{len(lanes[0])} steps; the static batcher took {len(before[0])}. The bound said at most "
          f"{bound(EIGHT_OUTPUTS, slots):.2f} times faster; it is {len(before[0]) / len(lanes[0]):.2f} times.")  # fmt: skip

    heading("2. Two hundred requests")
    print("All there from the start, prompts of 32 tokens, outputs exponential with mean 100.\n")
    rows = []
    for b in (8, 16, 32):
        load = traces.story_f()
        bound_b = bound([request.max_tokens for request in load], b)
        s, c = (done(engine(kind(b), None, traces.story_f()).run()) for kind in (static_batcher, batcher))
        rows.append((b, _slots_busy(s, b), _slots_busy(c, b), round(s.tokens_per_s), round(c.tokens_per_s),
                     f"{c.tokens_per_s / s.tokens_per_s:.2f}x", f"{bound_b:.2f}x"))  # fmt: skip
    print(table(("slots", "busy static", "continuous", "tokens/s static", "continuous", "ratio", "bound in steps"), rows))

    heading("3. Continuous is not dynamic")
    print("The same lengths arriving at 6 a second, 16 slots. A static batcher that takes whoever waits when a batch ends is\n"
          "what servers call dynamic batching: it chooses the batch late, and closes it all the same.\n")  # fmt: skip
    arriving = [("dynamic", static_batcher), ("continuous", batcher)]
    reports = [(name, done(engine(kind(16), None, _arriving(6.0)).run())) for name, kind in arriving]
    print(table(("batching", "TTFT p50 ms", "p99 ms", "gap p99 ms", "tokens/s", "steps"),
                [(name, r.ttft_ms(50), r.ttft_ms(99), r.itl_ms(99), round(r.tokens_per_s), r.num_steps) for name, r in reports]))  # fmt: skip

    heading("4. What can_admit doesn't ask")
    load = traces.azure_like("conv", 400, seed=1, rate=8.0)
    runner = PeakKV()
    r = done(engine(batcher(64), runner, load).run())
    step_ms = max(r.gap_ns[k] for k in range(len(r.gap_ns)) if r.continuing[k]) / 1e6
    print(f"400 requests like Azure's conversations at 8 a second, 64 slots. can_admit counted slots, and so\n"
          f"  the largest step computed {max(r.num_tokens):,} tokens, and a user in mid-answer waited {step_ms:,.0f} ms for it;\n"
          f"  the running requests held {runner.peak:,} tokens of KV at the peak: "
          f"{runner.peak * 131_072 / 1e9:.1f} GB of a Llama-3-8B.")  # fmt: skip
    options.json_out(args, {"two_hundred": rows, "peak_kv_tokens": runner.peak, "largest_step": max(r.num_tokens)})
    return 0


class PeakKV:
    """A cost runner that remembers the most KV tokens that the running requests held together."""

    def __init__(self) -> None:
        from s08_static_batching import CostRunner

        self.runner, self.peak = CostRunner(), 0

    def execute(self, batch: Any) -> Any:
        self.peak = max(self.peak, sum(request.num_computed_tokens for request in batch.tokens))
        return self.runner.execute(batch)


def _arriving(rate: float) -> list[Request]:
    """Story F's requests, but arriving at `rate` a second."""
    requests = traces.story_f()
    for request, arrival_ns in zip(requests, traces.poisson(len(requests), rate, Random(1)), strict=True):
        request.arrival_ns = arrival_ns
    return requests


def _slots_busy(report: Report, slots: int) -> str:
    """The share of slot-steps that made a token."""
    return f"{sum(report.num_running) / (slots * report.num_steps):.3f}"


def _trace(args: argparse.Namespace, batcher: Any, engine: Any) -> int:
    """A real trace through a batcher that knows no memory."""
    slots = options.config_from(args, max_num_seqs=64).max_num_seqs
    requests = traces.read_csv(args.trace)
    loop = engine(batcher(slots), None, requests)
    with options.Progress(str(args.trace), len(requests)) as progress:
        report = done(loop.run(watch=lambda: progress.update(len(loop.report.rows))))
    print(f"{len(requests):,} requests, {slots} slots; milliseconds {label()}\n")
    print(table(("finished", "slots busy", "tokens/s", "TTFT p50 ms", "p99 ms", "gap p99 ms", "virtual s"),
                [(len(report.finished), _slots_busy(report, slots), round(report.tokens_per_s), report.ttft_ms(50),
                  report.ttft_ms(99), report.itl_ms(99), report.duration_s)]))  # fmt: skip
    options.json_out(args, report.to_json())
    return 0


def _stories(args: argparse.Namespace, batcher: Any, engine: Any) -> int:
    """Real text through a batcher."""
    from kit import stories

    return stories.tell(args, lambda config: batcher(config.max_num_seqs), engine)

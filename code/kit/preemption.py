"""The main job of s12: two bills, where they cross, one load both ways, whom to evict, thrash, a runner that fails.

The shape of the file: the bills; the loads; the sections of the script, each a table and what to read off it; options of the
command line. The pictures are in kit.preemption_pictures.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from kit import incidents, options, traces
from kit.config import Config
from kit.exercise import graft
from kit.experiments import label
from kit.report import Report, done, heading, table, whole
from kit.request import Count, Request

LESSON = "s12_preemption"
LENGTHS = (16, 64, 256, 1024, 4096, 16_384)
BESIDE = 16  # decodes in the step that recomputes
LONGEST = 16_384  # tokens up to which the bills are compared


def main(argv: Sequence[str] | None, scheduler: Any, engine: Any) -> int:
    """Parse the command line and run what it asks for; returns the exit code."""
    return options.run(lambda: _run(options.parse(LESSON, argv), scheduler, engine))


def _run(args: argparse.Namespace, scheduler: Any, engine: Any) -> int:
    s12 = sys.modules[scheduler.__module__]
    if args.replay:
        from kit import replay

        return replay.replay_file(args.replay, scheduler, LESSON)
    if args.model:
        from kit import stories

        return stories.tell(args, scheduler, engine)
    if args.trace:
        result = _trace(args, s12)
    elif any((args.budget, args.blocks, args.policy, args.config)) or args.mystery:
        result = _one_load(args, s12)
    else:
        print(f"Every millisecond below is modelled, for the GPU and model beside it; if none is named: {label()}.")
        result = {
            "two_bills": two_bills(s12),
            "where_they_cross": where_they_cross(s12),
            "one_load_both_ways": one_load_both_ways(s12),
            "whom_to_evict": whom_to_evict(s12),
            "front_or_back": front_or_back(s12),
            "thrash": thrash(s12),
            "a_runner_that_fails": a_runner_that_fails(s12),
        }
    options.json_out(args, result)
    return 0


def _say(text: str) -> None:
    print(textwrap.fill(text, 110) + "\n")


# The bills.


def machines() -> list[tuple[Any, Any, Any]]:
    """(cost, GPU, model) of the four that are compared: A100 and H100, each with GQA and with a key and value for every head."""
    import s03_step_cost as s03

    return [
        (s03.A100_LLAMA3_8B, s03.A100, s03.LLAMA3_8B),
        (s03.A100_LLAMA2_7B, s03.A100, s03.LLAMA2_7B),
        (s03.H100_LLAMA31_8B, s03.H100, s03.LLAMA3_8B),
        (s03.H100_LLAMA2_7B, s03.H100, s03.LLAMA2_7B),
    ]


def name_of(machine: tuple[Any, Any, Any]) -> str:
    cost, _, model = machine
    return f"{cost.gpu}, {cost.model} ({'GQA' if model.kv_heads < model.heads else 'MHA'})"


def bills(
    s12: ModuleType, machine: tuple[Any, Any, Any], tokens: int, decodes: int, link: Any, attention: bool = True
) -> Any:
    """(recompute, swap) in ms for one request with `tokens` stored."""
    cost, gpu, model = machine
    own = s12.quadratic_ms(gpu, model, tokens) if attention else 0.0
    return s12.recompute_ms(cost, tokens, decodes, own), s12.swap_ms(model, tokens, link)


def cheaper(s12: ModuleType, machine: tuple[Any, Any, Any], decodes: int, link: Any, attention: bool = True) -> str:
    """Where recompute is the smaller bill, in words, up to LONGEST tokens. Whole blocks only: a part-filled one swaps whole."""
    size = 16
    pairs = (bills(s12, machine, tokens, decodes, link, attention) for tokens in range(size, LONGEST + 1, size))
    ranges: list[list[int]] = []  # first and last length of each range in which recompute is cheaper
    for tokens, (recompute, swap) in zip(range(size, LONGEST + 1, size), pairs):
        if recompute < swap:
            if ranges and ranges[-1][1] == tokens - size:
                ranges[-1][1] = tokens
            else:
                ranges.append([tokens, tokens])
    words = []
    for first, last in ranges:
        if first == size:
            words.append("always" if last == LONGEST else f"up to {last:,}")
        else:
            words.append(f"from {first:,}" if last == LONGEST else f"{first:,} to {last:,}")
    return ", ".join(words) or "never"


def straightened(machine: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """The machine with s03's fit, flat and then a line, in place of its profile."""
    from dataclasses import replace

    import s03_step_cost as s03

    cost, gpu, model = machine
    line = s03.fit(cost.profile)
    points = ((1.0, line.floor_ms), (line.knee(), line.floor_ms), (4096.0, line.step_ms(4096)))
    return replace(cost, profile=points, note="fitted", _linear_ns={}), gpu, model


def two_bills(s12: ModuleType) -> dict[str, Any]:
    heading("1. Two bills")
    _say(
        f"One request with so many tokens stored, in ms. Recompute in a step of its own, and in a step that {BESIDE} decodes need "
        "anyway; of both, attention among its own tokens at the chip's peak. Swap: out and back over PCIe 4.0 at 25 GB/s, 10 us a "
        "block and direction besides."
    )
    rows = []
    for machine in machines():
        for tokens in LENGTHS:
            alone, swap = bills(s12, machine, tokens, 0, s12.PCIE4)
            beside, _ = bills(s12, machine, tokens, BESIDE, s12.PCIE4)
            own = s12.quadratic_ms(machine[1], machine[2], tokens)
            rows.append((name_of(machine), tokens, *(f"{ms:,.1f}" for ms in (alone, beside, own, swap))))
    columns = ("", "tokens", "alone", f"beside {BESIDE}", "attention", "swap")
    print(table(columns, rows))
    return {"rows": [dict(zip(columns, row)) for row in rows]}


def where_they_cross(s12: ModuleType) -> dict[str, Any]:
    heading("2. Where they cross")
    _say(
        f"The lengths at which recompute is the smaller bill, in whole blocks up to {LONGEST:,} tokens; Llama-2 itself takes 4,096. "
        "The slopes are what one more token costs far from the start, in us, without attention."
    )
    rows = []
    links = (s12.PCIE4_SHARED, s12.PCIE4, s12.PCIE5)
    for machine in machines():
        for link in links:
            beside = cheaper(s12, machine, BESIDE, link)
            without = cheaper(s12, machine, BESIDE, link, attention=False)
            slope_r, slope_s = (
                1e3 * (b - a) / 1024
                for a, b in zip(
                    bills(s12, machine, 2048, 0, link, attention=False), bills(s12, machine, 3072, 0, link, attention=False)
                )
            )
            rows.append((name_of(machine), f"{link.bytes_per_s / 1e9:.0f} GB/s", f"{slope_r:.0f}", f"{slope_s:.0f}",
                         cheaper(s12, machine, 0, link), beside, without))  # fmt: skip
    columns = ("", "link", "slope: recompute", "swap", "alone", f"beside {BESIDE}", "without attention")
    print(table(columns, rows) + "\n")
    decided = sum(row[-1] != row[-2] for row in rows)
    _say(
        "Alone, a step has to be paid from its floor, and a short swap is cheaper everywhere. Beside others the floor is paid, "
        "and the shortest are cheaper to recompute on three of the four machines; the first is below. What happens to long ones is "
        f"in the two slopes. Attention, which grows with the square, changes {decided} of the {len(rows)} rows, where the slopes "
        "are close."
    )
    first = straightened(machines()[0])
    flat = cheaper(s12, first, BESIDE, s12.PCIE4)
    cost = machines()[0][0]
    climb = (cost.step_ns(32, 0) - cost.step_ns(1, 0)) / 31e3
    _say(
        f"How flat is the floor? The profile of {name_of(machines()[0])} climbs by {climb:.0f} us a token from 1 to 32 tokens, and "
        f"swapping a token costs 12: at 25 GB/s recompute is {rows[1][5]} cheaper there. With s03's fit, whose floor is flat, the "
        f"same row says {flat}."
    )
    return {"rows": [dict(zip(columns, row)) for row in rows], "with_the_fit": flat}


# The loads.


def long_prompts(n: int = 40, seed: int = 7, gap_ns: int = 0) -> list[Request]:
    """Long prompts, 1,500-3,000 tokens, answers of 50-200; all at once, or one each `gap_ns`."""
    rng = Random(seed)
    return [
        Request(f"r{i}", range(traces.whole(rng, 1500, 3000)), traces.whole(rng, 50, 200), i * gap_ns, output=Count())
        for i in range(n)
    ]


class Bill:
    """A SwapRunner that keeps two sums: what the copies took, and what computing tokens again took. Both in nanoseconds.

    again: of a step, its price less the price without the tokens that were stored before.
    """

    def __init__(
        self, s12: ModuleType, machine: tuple[Any, Any, Any] | None = None, link: Any = None, block_size: int = 16
    ):
        cost, _, model = machine or machines()[0]
        self.runner = s12.SwapRunner(cost, model, link or s12.PCIE4, block_size)
        self.cost, self.copies, self.copy_ns, self.again, self.again_ns = cost, 0, 0, 0, 0
        self.stored: dict[Request, int] = {}  # the most that was ever stored of it

    def execute(self, batch: Any) -> Any:
        total = sum(batch.tokens.values())
        kv = sum(request.num_computed_tokens for request in batch.tokens)
        again = 0
        for request, n in batch.tokens.items():
            before = request.num_computed_tokens - n
            again += max(0, min(request.num_computed_tokens, self.stored.get(request, 0)) - before)
            self.stored[request] = max(self.stored.get(request, 0), request.num_computed_tokens)
        if again:
            less = self.cost.step_ns(total - again, kv - again) if total > again else 0
            self.again_ns += self.cost.step_ns(total, kv) - less
            self.again += again
        copies = len(batch.blocks_to_swap_out) + len(batch.blocks_to_swap_in)
        self.copies += copies
        self.copy_ns += copies * self.runner.block_ns
        return self.runner.execute(batch)


def simulate(
    s12: ModuleType, requests: Sequence[Request], runner: Any = None, order: Any = None, victim: Any = None, meter: Any = None,
    **limits: Any,
) -> Report:  # fmt: skip
    """Run a load to its end under s12's scheduler. NotDone if it has none."""
    scheduler = s12.SwappingScheduler(Config(**limits), order, victim)
    scheduler.meter = meter
    return done(s12.Engine(scheduler, runner, requests).run())


COLUMNS = ("tokens/s", "TTFT p50", "p99 ms", "longest pause ms", "evictions", "most of one", "rec/new")


def headline(report: Report) -> tuple[Any, ...]:
    """What stands under COLUMNS."""
    most = max((row.preemptions for row in report.rows), default=0)
    return (
        round(report.tokens_per_s),
        *(whole(report.ttft_ms(p)) for p in (50, 99)),
        round(report.longest_gap_ms),
        report.preemptions,
        most,
        f"{100 * report.rec_new:.1f}%",
    )


# The sections.


def one_load_both_ways(s12: ModuleType) -> dict[str, Any]:
    heading("3. One load, both ways")
    _say(
        "A burst of sixty (prompts 50-300, outputs 50-200) in 60 blocks, 64 seats. `cpu` is the CPU's blocks: 0 is recompute. "
        "The bill is what computing again and copying added to the steps, in ms, beside the whole run in seconds."
    )
    rows = []
    for machine in machines()[:3]:
        for cpu in (0, 10, 60):
            bill = Bill(s12, machine)
            report = simulate(s12, traces.story_e(), bill, num_blocks=60, max_num_seqs=64, cpu_blocks=cpu)
            rows.append((name_of(machine), cpu, f"{report.duration_s:.1f}", round(report.longest_gap_ms), report.preemptions,
                         f"{bill.again:,}", round(bill.again_ns / 1e6), bill.copies, round(bill.copy_ns / 1e6)))  # fmt: skip
    columns = ("", "cpu", "run s", "longest pause ms", "evictions", "again: tokens", "ms", "copies", "ms")
    print(table(columns, rows) + "\n")
    _say(
        "Both bills are small beside the run, and the pause is nearly all waiting for blocks, not bringing KV back: which way back "
        "is cheaper hardly matters here. With 10 CPU blocks only the small victims move, the others fall back to recompute."
    )
    names = ("machine", "cpu_blocks", "run_s", "longest_pause_ms", "evictions", "again", "again_ms", "copies", "copy_ms")
    return {"rows": [dict(zip(names, row)) for row in rows]}


def whom_to_evict(s12: ModuleType) -> dict[str, Any]:
    heading("4. Whom to evict")
    _say(
        "Recompute, and three victims. First 500 small requests (16-160, outputs 16-96) at 25/s in 100 blocks, then the burst."
    )
    rows = []
    loads = (
        ("stream", lambda: traces.story_d(500, rate=25.0), {"num_blocks": 100, "max_num_seqs": 256}),
        ("burst", traces.story_e, {"num_blocks": 60, "max_num_seqs": 64}),
        ("burst, shortest first", traces.story_e, {"num_blocks": 60, "max_num_seqs": 64, "policy": "shortest"}),
    )
    for load, requests, limits in loads:
        for name, key in s12.VICTIM_KEYS.items():
            rows.append((load, name, *headline(simulate(s12, requests(), victim=key, **limits))))
    print(table(("load", "victim", *COLUMNS), rows))
    return {"rows": [dict(zip(("load", "victim", *COLUMNS), row)) for row in rows]}


def front_or_back(s12: ModuleType) -> dict[str, Any]:
    heading("5. Front or back")
    _say("The burst in 60 blocks, first come first served. A victim returns to the front of the queue, or joins its end.")
    rows = []
    for name, order in (("front", None), ("back", s12.ToTheBack())):
        report = simulate(s12, traces.story_e(), order=order, num_blocks=60, max_num_seqs=64)
        rows.append((name, *headline(report), f"{report.duration_s:.1f}"))
    print(table(("victim to the", *COLUMNS, "run s"), rows))
    return {"rows": [dict(zip(("to", *COLUMNS, "run_s"), row)) for row in rows]}


def thrash(s12: ModuleType) -> dict[str, Any]:
    heading("6. Thrash that costs throughput")
    _say(
        "Forty long prompts (1,500-3,000 tokens, outputs 50-200) at once, budget 512, 64 seats. `chunk`: who finds room for its "
        "first chunk joins. `full prompt`: who finds room for all of its prompt. `held back`: as `chunk`, and nobody new joins "
        "while the meter says thrashing. `swap`: as `chunk`, with as many blocks on the CPU."
    )
    from s10_scheduler import ThrashMeter

    rows = []
    for blocks in (6000, 2000, 1000, 600):
        limits: dict[str, Any] = {"num_blocks": blocks, "max_num_seqs": 64, "max_num_batched_tokens": 512}
        tries: dict[str, dict[str, Any]] = {
            "chunk": {},
            "held back": {"meter": ThrashMeter()},
            "swap": {"runner": s12.SwapRunner(), "cpu_blocks": blocks},
            "full prompt": {"admission": "full_prompt"},
        }
        for name, change in tries.items():
            if blocks < 6000 or name == "chunk":
                rows.append((blocks, name, *headline(simulate(s12, long_prompts(), **limits, **change))))
    print(table(("blocks", "joins", *COLUMNS), rows) + "\n")
    calm = recovery(s12)
    _say(
        f"And does it end by itself? The same prompts, one every 100 ms, then ten more from 60 s on, one a second, in 1,000 "
        f"blocks: {calm[0]} evictions among the forty, {calm[1]} among the ten. It ends with the load; no state is left behind."
    )
    return {"rows": [dict(zip(("blocks", "joins", *COLUMNS), row)) for row in rows], "recovery": calm}


def recovery(s12: ModuleType) -> tuple[int, int]:
    """Evictions of forty requests that come too fast, and of the ten that come a minute later."""
    load = long_prompts(gap_ns=100_000_000)
    for i, request in enumerate(long_prompts(10, seed=8)):
        request.id, request.arrival_ns = f"late{i}", (60 + i) * 10**9
        load.append(request)
    report = simulate(s12, load, num_blocks=1000, max_num_seqs=64, max_num_batched_tokens=512)
    late = sum(row.preemptions for row in report.rows if row.id.startswith("late"))
    return report.preemptions - late, late


class Breaks:
    """A runner that raises in the first step that swaps somebody out, once."""

    def __init__(self, runner: Any):
        self.runner, self.broke = runner, False

    def execute(self, batch: Any) -> Any:
        if batch.swapped and not self.broke:
            self.broke = True
            raise RuntimeError("the copy engine is gone")
        return self.runner.execute(batch)


def a_runner_that_fails(s12: ModuleType) -> dict[str, Any]:
    heading("7. A runner that fails")
    _say("The burst, with 60 blocks on the CPU, and a runner that raises in the first step that swaps somebody out.")
    scheduler = s12.SwappingScheduler(Config(num_blocks=60, max_num_seqs=64, cpu_blocks=60))
    engine = s12.Engine(scheduler, Breaks(s12.SwapRunner()), traces.story_e())
    while not engine.report.errors:
        batch = engine.step()
    victim = batch.swapped[0]
    print(f"  {engine.report.errors[0]}")
    print(f"  ended as `error`: {' '.join(row.id for row in engine.report.rows if row.finish_reason == 'error')}")
    print(f"  {victim.id} was being swapped out: stored now {victim.num_computed_tokens}, "
          f"thrown away {victim.recomputed_tokens}, output kept {victim.num_output_tokens}")  # fmt: skip
    report = done(engine.run())
    row = next(row for row in report.rows if row.id == victim.id)
    print(f"  {victim.id} in the end: {row.finish_reason} with {row.output_tokens} tokens")
    print(f"  afterwards {len(report.finished)} of 60 finished; free: {scheduler.pool.num_free} of 60 GPU blocks, "
          f"{scheduler.cpu_pool.num_free} of 60 CPU blocks\n")  # fmt: skip
    return {"error": report.errors, "finished": len(report.finished), "victim": victim.id, "reason": row.finish_reason}


# One load of the user's choice.


def _config(args: argparse.Namespace, **defaults: Any) -> Config:
    return options.config_from(args, **defaults)


def _mystery(letter: str) -> Path:
    return incidents.mystery(letter, LESSON)


def _one_load(args: argparse.Namespace, s12: ModuleType) -> dict[str, Any]:
    """The burst under the user's own limits, by recompute and with a pool on the CPU; or a mystery beside the scheduler."""
    config = _config(args, max_num_seqs=64, num_blocks=2000 if args.mystery else 60, cpu_blocks=60)

    def run(**change: Any) -> Report:
        scheduler = s12.SwappingScheduler(Config.from_dict({**vars(config), **change}))
        requests = incidents._with_priorities(traces.story_e())
        return s12.Engine(scheduler, s12.SwapRunner(block_size=config.block_size), requests).run(200_000)

    if args.mystery:
        reports = {"as it was": run()}
        graft(_mystery(args.mystery), s12.__dict__)
        reports[f"mystery {args.mystery}"] = run()
        print(f"Mystery {args.mystery}: something in it is wrong. Find the limits that show what.\n")
    else:
        reports = {"recompute": run(cpu_blocks=0), f"{config.cpu_blocks} CPU blocks": run()}
    incidents.print_limits("A burst of sixty (prompts 50-300, outputs 50-200), priorities 0, 1, 2 in turn", config)
    print(f"{config.cpu_blocks:,} CPU blocks\n")
    rows = [
        (name, len(r.finished), *headline(r), f"{r.computed_tokens:,}", f"{r.duration_s:.1f}")
        for name, r in reports.items()
    ]
    print(table(("", "finished", *COLUMNS, "computed", "run s"), rows))
    for name, report in reports.items():
        if report.diagnosis:
            print(f"\n{name} is {report.end}: {report.diagnosis}")
    incidents.print_refused(next(iter(reports.values())))
    return {name: report.to_json() for name, report in reports.items()}


def _trace(args: argparse.Namespace, s12: ModuleType) -> dict[str, Any]:
    """A real trace under the user's own limits."""
    requests = traces.read_csv(args.trace)
    config = _config(args, max_num_seqs=64)
    loop = s12.Engine(s12.SwappingScheduler(config), s12.SwapRunner(block_size=config.block_size), requests)
    with options.Progress(Path(args.trace).name, len(requests)) as progress:
        report = loop.run(watch=lambda: progress.update(len(loop.report.rows)))
    incidents.print_summary(f"{Path(args.trace).name}: {len(requests):,} requests", config, report)
    return report.to_json()

"""The main job of s13: six experiments, each a load, a table by class, and what to read off it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from kit import options, traces
from kit.config import Config
from kit.experiments import label
from kit.incidents import _heading, _say, print_limits, print_refused, print_summary
from kit.report import Report, Row, done, percentile, table, whole
from kit.request import Count, Request

LESSON = "s13_fairness"
EOS = -2  # what a runner with known lengths ends an answer with

Which = Callable[[Row], bool]


def main(argv: Sequence[str] | None, scheduler: Any, engine: Any) -> int:
    """Parse the command line and run what it asks for; returns the exit code."""
    return options.run(lambda: _run(options.parse(LESSON, argv), scheduler, engine))


class Lab:
    """What every experiment needs: the lesson's pieces, and a run of a load to its end."""

    def __init__(self, scheduler: Any, engine: Any):
        self.scheduler, self.engine = scheduler, engine
        self.lesson: Any = sys.modules[scheduler.__module__]

    def run(
        self, requests: Iterable[Request], config: Config, policy: Any = None, runner: Any = None, **attributes: Any
    ) -> Report:
        """Run a load to its end, the scheduler's extensions set by name. NotDone if it has none."""
        subject = self.scheduler(config, policy)
        for name, value in attributes.items():
            setattr(subject, name, value)
        return done(self.engine(subject, runner, requests).run())


def _run(args: argparse.Namespace, scheduler: Any, engine: Any) -> int:
    lab = Lab(scheduler, engine)
    if args.replay:
        from kit import replay

        return replay.replay_file(args.replay, scheduler, LESSON)
    if args.model:
        from kit import stories

        return stories.tell(args, scheduler, engine)
    targets = args.ttft_target, args.tpot_target
    if args.trace:
        result = _trace(args, lab, targets)
    elif any((args.budget, args.blocks, args.policy, args.config)):
        config = options.config_from(args, max_num_batched_tokens=512, max_num_seqs=16, num_blocks=2000)
        print_limits("Two classes: 40 jobs from the start (priority 1), 160 urgent ones at 8/s (priority 0)", config)
        report = lab.run(two_classes(), config)
        rows = [two_classes_row("as you set it", report, lab, targets)]
        print(table(TWO_CLASSES, rows))
        print_refused(report)
        result = {"rows": [dict(zip(TWO_CLASSES_JSON, row)) for row in rows]}
    else:
        print(f"Every millisecond below is {label()}. Percentiles are nearest-rank.")
        result = {
            "a_seat": a_seat(lab, targets),
            "aging": aging(lab),
            "a_flood": a_flood(lab),
            "a_blocked_head": a_blocked_head(lab),
            "how_much_to_promise": how_much_to_promise(lab),
            "in_time": in_time(lab, targets),
        }
    options.json_out(args, result)
    return 0


def by_class(rows: Iterable[Row], which: Which, unit_ns: float = 1e9) -> list[str]:
    """p50, p99 and max of the TTFT of a class, in seconds."""
    times = [row.ttft_ns / unit_ns for row in rows if row.ttft_ns is not None and which(row)]
    return [f"{percentile(times, p):.2f}" if times else "-" for p in (50, 99, 100)]


# 1 ------------------------------------------------------------------------------------------------------------------


def two_classes(urgent: int = 160, rate: float = 8.0, jobs: int = 40, seed: int = 13) -> list[Request]:
    """Jobs that are all there from the start (priority 1), and short urgent requests, `rate` a second (priority 0)."""
    rng = Random(seed)
    load = []
    for i in range(jobs):
        prompt, output = traces.whole(rng, 200, 600), traces.whole(rng, 150, 300)
        load.append(Request(f"job{i}", range(prompt), output, 0, 1, output=Count()))
    for i, arrival_ns in enumerate(traces.poisson(urgent, rate, rng)):
        prompt, output = traces.whole(rng, 32, 256), traces.whole(rng, 20, 80)
        load.append(Request(f"u{i}", range(prompt), output, arrival_ns, 0, output=Count()))
    return load


TWO_CLASSES = ("", "urgent p50", "p99", "max", "good", "jobs p50", "p99", "max", "longest gap", "put out", "most", "rec/new",
               "tok/s")  # fmt: skip
TWO_CLASSES_JSON = ("policy", "urgent_p50_s", "urgent_p99_s", "urgent_max_s", "urgent_good", "jobs_p50_s", "jobs_p99_s",
                    "jobs_max_s", "jobs_longest_gap_s", "put_out", "put_out_most", "rec_new", "tokens_per_s")  # fmt: skip


def two_classes_row(name: str, report: Report, lab: Lab, targets: tuple[float, float]) -> list[Any]:
    urgent = [row for row in report.rows if row.priority == 0]
    longest = max((row.longest_gap_ns for row in report.rows if row.priority), default=0) / 1e9
    return [
        name,
        *by_class(report.rows, lambda row: row.priority == 0),
        lab.lesson.goodput(urgent, *targets),
        *by_class(report.rows, lambda row: row.priority == 1),
        f"{longest:.2f}",
        report.preemptions,
        max((row.preemptions for row in report.rows), default=0),
        f"{100 * report.rec_new:.0f}%",
        round(report.tokens_per_s),
    ]


def a_seat(lab: Lab, targets: tuple[float, float]) -> dict[str, Any]:
    """Two classes under six policies."""
    _heading("1. Whose seat is it?")
    _say(
        "16 seats, budget 512, a pool that never runs out. 40 jobs (prompts 200-600, outputs 150-300, priority 1) are there from "
        "the start; 160 urgent requests (32-256, 20-80, priority 0) come at 8 a second. TTFT in seconds; `good`: urgent ones of "
        f"160 with TTFT within {targets[0]:g} ms and TPOT within {targets[1]:g}; the longest gap is a job's; `most`: how often one "
        "request was put out."
    )
    base: dict[str, Any] = {"max_num_batched_tokens": 512, "max_num_seqs": 16, "num_blocks": 2000}
    aged = {"policy": "priority", "aging_per_step": 2e-10}
    runs: dict[str, dict[str, Any]] = {
        "first come": {},
        "shortest": {"policy": "shortest"},
        "priority": {"policy": "priority"},
        "priority, seats": {"policy": "priority", "preempt_for_priority": True},
        "aging": aged,
        "aging, seats": {**aged, "preempt_for_priority": True},
    }
    rows = [
        two_classes_row(name, lab.run(two_classes(), Config(**base, **change)), lab, targets)
        for name, change in runs.items()
    ]
    print(table(TWO_CLASSES, rows) + "\n")
    order, seats, slow, both = rows[2:]
    fuller = [round(lab.run(two_classes(rate=12.0), Config(**base, **runs[name])).tokens_per_s) for name in list(runs)[2:4]]
    _say(
        f"An order alone leaves the urgent ones behind a full machine: p99 {order[2]} s. With seats it is {seats[2]} s, at the same "
        f"throughput: this machine has room to compute 100 tokens and {seats[11].rstrip('%')} of them again. With urgent ones at 12 a "
        f"second it has not, and seats cost throughput too: {fuller[1]} tokens/s in place of {fuller[0]}. The jobs pay in any case, in "
        f"the middle of their answers: a gap of {seats[8]} s. Aging (here one point in 5 s) brings the last job's start from "
        f"{order[7]} to {slow[7]} s. With seats it does not, {both[7]} s, and one job is put out {both[10]} times: its age takes it to the "
        "head and gives it the next free seat, and the next urgent request takes that, by raw priority."
    )
    return {"rows": [dict(zip(TWO_CLASSES_JSON, row)) for row in rows]}


# 2 ------------------------------------------------------------------------------------------------------------------


def stream_and_one(seconds: int = 12) -> list[Request]:
    """One request of priority 10 at 0, and an urgent one every 20 ms that keeps the only seat busy for 21 or so."""
    old = Request("old", range(16), 2, 0, 10, output=Count())
    first = Request("first", range(16), 2, 0, 0, output=Count())
    stream = [Request(f"u{i}", range(16), 2, i * 20_000_000, 0, output=Count()) for i in range(1, seconds * 50)]
    return [first, old, *stream]


def aging(lab: Lab) -> dict[str, Any]:
    """How long one unimportant request waits behind a stream of urgent ones, against the bound."""
    _heading("2. A bound for waiting")
    _say(
        "One seat. An urgent request (priority 0) of two steps comes every 20 ms, for 12 s: a little more than the seat can serve. "
        "One of priority 10 has been there from the start. The bound: whoever arrives later than that can't overtake it."
    )
    rows: list[tuple[Any, ...]] = []
    for rate in (0.0, 1.0, 2.0, 5.0):
        config = Config(max_num_seqs=1, num_blocks=100, policy="priority", aging_per_step=rate / 1e9)
        report = lab.run(stream_and_one(), config)
        old = next(row for row in report.rows if row.id == "old")
        bound = lab.lesson.aging_bound(10, 0, rate)
        passed = [row for row in report.rows if row.finish_ns < old.finish_ns]  # one seat: they went before
        late = [row for row in passed if row.arrival_ns > bound * 1e9]
        rows.append((f"{rate:g}", f"{bound:.1f}", f"{old.ttft_ms / 1e3:.2f}", len(passed), len(late)))
    print(table(("points/s", "bound s", "old's TTFT s", "went before it", "of these, came after the bound"), rows) + "\n")
    _say(
        "Without aging it starts when the stream has ended. With it, nobody who comes after the bound goes first; but those who came "
        "before are still in front, and the fuller the machine, the longer they take. The bound is on arrivals, not on the wait."
    )
    return {"rows": [dict(zip(("points_per_s", "bound_s", "ttft_s", "before", "late"), row)) for row in rows]}


# 3 ------------------------------------------------------------------------------------------------------------------


def flood(big: int = 200, steady: int = 60, light: int = 40, seed: int = 31) -> list[Request]:
    """Three tenants with the same kind of request: one floods, one asks for less at once, one asks now and then."""
    rng = Random(seed)
    arrivals = [("flood", 0)] * big + [("steady", 0)] * steady + [("light", t) for t in traces.poisson(light, 2.0, rng)]
    load = []
    for i, (tenant, arrival_ns) in enumerate(arrivals):
        prompt, output = traces.whole(rng, 100, 300), traces.whole(rng, 50, 150)
        load.append(Request(f"{tenant}{i}", range(prompt), output, arrival_ns, tenant=tenant, output=Count()))
    return load


class Served:
    """Watches a scheduler from outside: what each tenant was given, whatever the policy, while two of them waited."""

    def __init__(self, lab: Lab, first: str, second: str):
        self.meter = lab.lesson.FairShare()
        self.names = first, second
        self.apart = 0  # the most that the service of the two was apart while both waited
        self.shares: Mapping[str, int] = {}  # when the second had nobody waiting any more

    def attach(self, scheduler: Any) -> None:
        update = scheduler.update

        def watched(batch: Any, tokens: Any) -> Any:
            for request in batch.tokens:
                self.meter.charge(request)
            tenants = {request.tenant for request in scheduler._live.values() if not request.num_computed_tokens}
            if tenants.issuperset(self.names):
                first, second = (self.meter.served.get(name, 0) for name in self.names)
                self.apart = max(self.apart, abs(first - second))
                self.shares = dict(self.meter.served)
            return update(batch, tokens)

        scheduler.update = watched


def a_flood(lab: Lab) -> dict[str, Any]:
    """One tenant floods: what the others get, first come first served and by turns."""
    _heading("3. One tenant floods")
    _say(
        "The same kind of request from three tenants: 200 from `flood` and 60 from `steady`, all at once, and 40 from `light` at 2 a "
        "second. 16 seats, budget 512. Shares: of the tokens (an output counts twice) while flood and steady both wait. "
        "TTFT in seconds."
    )
    config = Config(max_num_batched_tokens=512, max_num_seqs=16, num_blocks=2000)
    dearest = max(len(request.prompt) + 2 * request.max_tokens for request in flood())
    rows, apart = [], []
    for name, policy in (("first come", None), ("fair share", lab.lesson.FairShare())):
        served, subject = Served(lab, "flood", "steady"), lab.scheduler(config, policy)
        served.attach(subject)
        report = done(lab.engine(subject, None, flood()).run())
        total = max(sum(served.shares.values()), 1)
        row: list[Any] = [name, *(f"{served.shares.get(tenant, 0) / total:.0%}" for tenant in ("flood", "steady", "light"))]
        for tenant in ("flood", "steady", "light"):
            row += by_class(report.rows, lambda row, tenant=tenant: row.id.startswith(tenant))  # type: ignore[misc]
        rows.append([*row, round(report.tokens_per_s)])
        apart.append(served.apart)
    columns = (
        "",
        "flood",
        "steady",
        "light",
        "flood p50",
        "p99",
        "max",
        "steady p50",
        "p99",
        "max",
        "light p50",
        "p99",
        "max",
        "tok/s",
    )
    print(table(columns, rows) + "\n")
    _say(
        f"The service of flood and steady was up to {apart[0]:,} tokens apart, and by turns {apart[1]:,}. It can't be more than 16 "
        f"seats full of the dearest request, 16 * {dearest} = {16 * dearest:,}: a tenant that is ahead gets no seat, and only what "
        f"sits already runs on. The price is {1 - rows[1][-1] / rows[0][-1]:.1%} of the throughput."
    )
    return {"rows": rows, "apart": apart, "bound": 16 * dearest}


# 4 ------------------------------------------------------------------------------------------------------------------


def small_and_large(seconds: float, rate: float = 22.0, seed: int = 41) -> list[Request]:
    """Small requests, `rate` a second, and one second after the start a prompt that needs most of the pool."""
    rng = Random(seed)
    load = [Request("large", range(1300), 50, 1_000_000_000, output=Count())]
    for i, arrival_ns in enumerate(traces.poisson(round(seconds * rate), rate, rng)):
        prompt, output = traces.whole(rng, 32, 160), traces.whole(rng, 30, 90)
        load.append(Request(f"s{i}", range(prompt), output, arrival_ns, output=Count()))
    return load


def below_64(row: Row) -> bool:
    return row.prompt_tokens < 64


def from_128(row: Row) -> bool:
    return row.id != "large" and row.prompt_tokens >= 128


def a_blocked_head(lab: Lab) -> dict[str, Any]:
    """Who gains if a head that lacks blocks lets others pass, and who starves."""
    _heading("4. A blocked head")
    _say(
        "Small requests at 22 a second in a pool of 100 blocks, 64 seats; after one second a prompt of 1,300 tokens comes, which needs "
        "82 of them at once (admission full_prompt). The stream lasts 5 or 15 s. TTFT in seconds."
    )
    rows: list[list[Any]] = []
    for seconds in (5, 15):
        for skip in (False, True):
            config = Config(max_num_batched_tokens=2048, max_num_seqs=64, num_blocks=100, watermark=0.0,
                            admission="full_prompt", skip_blocked=skip)  # fmt: skip
            report = lab.run(small_and_large(seconds), config)
            large = next(row for row in report.rows if row.id == "large")
            rows.append([f"{seconds} s", "skip" if skip else "wait", *by_class(report.rows, lambda row: row.id != "large"),
                         f"{large.ttft_ms / 1e3:.2f}", report.preemptions, round(report.tokens_per_s),
                         *(by_class(report.rows, size)[1] for size in (below_64, from_128))])  # fmt: skip
    columns = (
        "stream",
        "head",
        "small p50",
        "p99",
        "max",
        "large",
        "evictions",
        "tok/s",
        "below 64: p99",
        "128 and more: p99",
    )
    print(table(columns, rows) + "\n")
    waits, skips = [row[5] for row in rows[::2]], [row[5] for row in rows[1::2]]
    waited, skipped = rows[-2:]
    _say(
        f"Waiting, the large one gets in after {' and '.join(waits)} s, however long the stream. Skipped, it waits {' and '.join(skips)} s: until the "
        "small ones run out, for they take each block that comes free before enough of them are free together. That is starvation. And "
        "it doesn't stop there: among the small ones too the smaller pass the larger. In the longer stream the p99 of prompts below 64 "
        f"tokens goes from {waited[-2]} to {skipped[-2]} s, that of 128 and more from {waited[-1]} to {skipped[-1]}. Who passes over a "
        "head that lacks blocks has made the queue smallest first."
    )
    return {"rows": rows}


# 5 ------------------------------------------------------------------------------------------------------------------


class KnownLengths:
    """A cost runner whose answers end by EOS after so many tokens, however large max_tokens is."""

    def __init__(self, lengths: Mapping[str, int]):
        from s08_static_batching import CostRunner

        self.runner, self.lengths = CostRunner(), lengths

    def execute(self, batch: Any) -> Any:
        tokens, step_ns = self.runner.execute(batch)
        counts = {request.id: request.num_output_tokens + 1 for request in batch.tokens}
        return {id: [EOS] if counts[id] >= self.lengths[id] else new for id, new in tokens.items()}, step_ns


def cautious(limit: int | None, n: int = 300) -> tuple[list[Request], dict[str, int]]:
    """Story D's stream at 25/s, and how long its answers are; each asks for `limit` tokens (None: for what it gets)."""
    lengths, load = {}, []
    for request in traces.story_d(n, rate=25.0):
        lengths[request.id] = request.max_tokens
        load.append(Request(request.id, request.prompt, limit or request.max_tokens, request.arrival_ns,
                            stop_token_ids=frozenset([EOS]), output=Count()))  # fmt: skip
    return load, lengths


MODES = ("chunk", "full_prompt", "estimate", "to_completion")


def how_much_to_promise(lab: Lab) -> dict[str, Any]:
    """The admission modes, on answers that use all they ask for and on answers that use a fraction of it."""
    _heading("5. How much to promise")
    _say(
        "300 small requests (prompt 16-160, output 16-96) at 25 a second in a pool of 60, 256 seats, budget 1,024. First each asks for "
        "exactly what its answer takes; then all ask for 500 tokens and end by EOS at the same lengths as before. (`chunk` and "
        "`full_prompt` are one here: a prompt of at most 160 tokens is its own first chunk.)"
    )
    columns = (
        "max_tokens",
        "admission",
        "tok/s",
        "TTFT p50",
        "p99 ms",
        "longest gap",
        "evictions",
        "rec/new",
        "most running",
    )
    rows, ratios = [], []
    for limit in (None, 500):
        for mode in MODES:
            load, lengths = cautious(limit)
            config = Config(max_num_batched_tokens=1024, max_num_seqs=256, num_blocks=60,
                            admission="to_completion" if mode == "estimate" else mode)  # fmt: skip
            estimate = lab.lesson.TokenRatio() if mode == "estimate" else None
            report = lab.run(load, config, runner=KnownLengths(lengths), estimate=estimate)
            rows.append(("as needed" if limit is None else f"{limit}", mode, round(report.tokens_per_s), whole(report.ttft_ms(50)),
                         whole(report.ttft_ms(99)), round(report.longest_gap_ms), report.preemptions,
                         f"{100 * report.rec_new:.1f}%", max(report.num_running)))  # fmt: skip
            if estimate is not None:
                ratios.append(estimate.ratio)
    print(table(columns, rows) + "\n")
    chunk, estimated, safe, wide_chunk, wide_estimate, wide = (rows[i] for i in (0, 2, 3, 4, 6, 7))
    floor = lab.lesson.TokenRatio().least
    used = sum(lengths.values()) / len(lengths) / 500
    end = "it falls to its floor" if ratios[1] == floor else f"it ends at {ratios[1]:.2f}"
    _say(
        f"Thrash beats caution: reserving to completion evicts nobody and makes {safe[2]} tokens/s, against {chunk[2]} with "
        f"{chunk[6]} evictions. What caution buys is the longest pause, {safe[5]} ms against {chunk[5]}. With a max_tokens that nobody "
        f"uses it is worse by far: {wide[2]} against {wide_chunk[2]}, and at most {wide[8]} at a time. The estimate makes "
        f"{wide_estimate[2]} tokens/s with {wide_estimate[6]} evictions: {end}, {floor:g}, and nothing contradicts it, for answers take "
        f"{used:.2f} of what they ask. Where they take all of it, {estimated[6]} evictions tell it so."
    )
    return {"rows": [dict(zip(columns, row)) for row in rows]}


# 6 ------------------------------------------------------------------------------------------------------------------


def in_time(lab: Lab, targets: tuple[float, float]) -> dict[str, Any]:
    """Goodput below and beyond capacity, with and without refusing early."""
    ttft_ms, tpot_ms = targets
    _heading("6. In time")
    _say(
        "600 requests like story C's (four of five prompts 32-256 tokens, one 1,000-1,900) at 16 and 20 a second, first come "
        f"first served, 32 seats, budget 512. Good: TTFT within {ttft_ms:g} ms and TPOT within {tpot_ms:g} ms. `refuse` turns away at "
        "`add` whoever is predicted beyond the TTFT target: by s10's guess, or by the mended one."
    )
    base = sys.modules[lab.scheduler.__mro__[-2].__module__].Scheduler.predict_ttft_ms
    rows, slowest_ms = [], 0.0
    for rate in (16.0, 20.0):
        for name in ("", "s10's guess", "mended"):
            config = Config(max_num_batched_tokens=512, max_num_seqs=32, num_blocks=4000)
            subject = lab.scheduler(config)
            if name:
                subject.ttft_target_ms = ttft_ms
            if name == "s10's guess":
                subject.predict_ttft_ms = base.__get__(subject)
            report = done(lab.engine(subject, None, traces.story_c(600, rate=rate)).run())
            good = lab.lesson.goodput(report.rows, ttft_ms, tpot_ms)
            slowest_ms = max(slowest_ms, *map(_tpot_ms, report.finished))
            in_ttft = sum(row.ttft_ms <= ttft_ms for row in report.finished)
            rows.append((f"{rate:g}/s", name or "-", len(report.refused), len(report.finished), in_ttft, good,
                         whole(report.ttft_ms(50)), whole(report.ttft_ms(99)), round(report.tokens_per_s)))  # fmt: skip
    columns = ("arrivals", "refuse", "refused", "served", "TTFT met", "good", "TTFT p50", "p99 ms", "tok/s")
    print(table(columns, rows) + "\n")
    late, low, mended = rows[3:]
    drags = f"TTFT decides alone: nobody's TPOT is above {slowest_ms:.0f} ms. With --tpot-target 20 it counts too."
    if any(row[4] != row[5] for row in rows):
        drags = f"TPOT decides too: it goes up to {slowest_ms:.0f} ms."
    _say(
        f"At {late[0]} the throughput is {late[8]:,} tokens/s, and {late[5]} of 600 are served in "
        f"time. s10's guess counts tokens only, refuses {low[2]}, and leaves {low[5]} in time. The mended one counts seats too: it "
        f"refuses {mended[2]} and leaves {mended[5]}. A guess that is too low is worth little: everybody it lets in makes the others late. "
        + drags
    )
    return {"rows": [dict(zip(columns, row)) for row in rows]}


def _tpot_ms(row: Row) -> float:
    return (row.finish_ns - (row.first_token_ns or 0)) / max(row.output_tokens - 1, 1) / 1e6


# One trace of the user's ----------------------------------------------------------------------------------------------


def _trace(args: argparse.Namespace, lab: Lab, targets: tuple[float, float]) -> dict[str, Any]:
    requests = traces.read_csv(args.trace)
    config = options.config_from(args, max_num_batched_tokens=512, max_num_seqs=256)
    loop = lab.engine(lab.scheduler(config), None, requests)
    with options.Progress(Path(args.trace).name, len(requests)) as progress:
        report = loop.run(watch=lambda: progress.update(len(loop.report.rows)))
    print_summary(f"{Path(args.trace).name}: {len(requests):,} requests", config, report)
    good = lab.lesson.goodput(report.rows, *targets)
    print(f"\nin time (TTFT within {targets[0]:g} ms, TPOT within {targets[1]:g} ms): {good:,}")
    return {**report.to_json(), "good": good}

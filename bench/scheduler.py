"""How much CPU time scheduling costs: a decision, a whole hour, many hours; against the course's targets and a peer.

python bench/scheduler.py [--trace FILE] [--check]. CPU time of this process (time.process_time), the best of several
repeats: a shared machine can only make a run slower. Whole hours run in processes of their own.
"""

# ruff: noqa: E402  (the path comes before what is found on it)

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "solutions"), str(ROOT / "bench")]

import peer
from kit import options, sweep, traces
from kit.config import Config
from kit.errors import CourseError
from kit.report import table
from kit.request import Count, Request
from s03_step_cost import A100_LLAMA3_8B
from s08_static_batching import Engine
from s09_continuous_batching import ContinuousBatcher
from s10_scheduler import Scheduler
from s11_chunked_prefill import ChunkedScheduler

AMPLE = 40_000  # KV blocks: nothing here ever preempts
TRACE = "AzureLLMInferenceTrace_conv.csv"
SCHEDULERS: dict[str, Callable[[int], Any]] = {
    "s09": ContinuousBatcher,
    "s10": lambda seats: Scheduler(
        Config(max_num_seqs=seats, num_blocks=AMPLE, max_num_batched_tokens=16_384, reject_unservable=False)
    ),
}


def us_per_decision(make: Callable[[int], Any], running: int, waiting: int = 0, repeats: int = 7) -> float:
    """Microseconds of schedule() + update() per scheduled request while `running` requests decode."""
    scheduler = make(running)
    for i in range(running + waiting):
        scheduler.add(Request(f"r{i}", range(32), 1_000_000, output=Count()))
    tokens = {f"r{i}": [-1] for i in range(running)}
    steps = max(20, 20_000 // running)
    scheduler.update(scheduler.schedule(), tokens)  # the prefills
    best = float("inf")
    for _ in range(repeats):
        began = process_time()
        for _ in range(steps):
            scheduler.update(scheduler.schedule(), tokens)
        best = min(best, process_time() - began)
    return best / (steps * running) * 1e6


Loader = Callable[[str], list[Request]]
HOUR = Config(max_num_seqs=256, max_num_batched_tokens=512, num_blocks=AMPLE)  # chunked


def trace_run(path: str) -> dict[str, float]:
    """The whole trace through s10 with engine, cost model and report."""
    best = float("inf")
    for _ in range(2):
        requests = traces.read_csv(path)
        scheduler = Scheduler(Config(max_num_seqs=64, max_num_batched_tokens=16_384, num_blocks=AMPLE))
        began = process_time()
        report = Engine(scheduler, None, requests).run()
        summary = report.summary()
        best = min(best, process_time() - began)
        if summary["finished"] != len(requests) or summary["preemptions"]:
            raise CourseError(
                f"{path}: {summary['finished']} of {len(requests)} finished, {summary['preemptions']} preemptions"
            )
    scheduled = sum(report.num_running)
    return {"us": best / scheduled * 1e6, "scheduled": scheduled, "steps": report.num_steps, "mb": peak_mb()}


def the_hour(path: str) -> list[Request]:
    return traces.read_csv(path)


def at_once(path: str) -> list[Request]:
    """The first 2,000 of them, all there from the start: a long queue."""
    requests = traces.read_csv(path)[:2000]
    for request in requests:
        request.arrival_ns = 0
    return requests


def engine_run(path: str, load: Loader, fast: bool) -> dict[str, float]:
    """A load through s11, with or without jumps. Reading the file is not counted."""
    best = float("inf")
    for _ in range(2):
        engine = Engine(ChunkedScheduler(HOUR), None, load(path))
        began = process_time()
        report = engine.run(fast=fast)
        best = min(best, process_time() - began)
    return {"s": best, "steps": report.num_steps, "end_ns": report.end_ns[-1]}


def sweep_run(path: str, load: Loader) -> dict[str, float]:
    """The same in the sweep loop."""
    best, requests = float("inf"), load(path)
    for _ in range(3):
        began = process_time()
        outcome = sweep.run(sweep.Load(requests), HOUR, A100_LLAMA3_8B)
        best = min(best, process_time() - began)
    return {"s": best, "steps": outcome.steps, "end_ns": outcome.end_ns}


def grid_run(path: str) -> dict[str, float]:
    """96 runs of the hour: 8 budgets x 6 pools x 2 kinds of admission."""
    load = sweep.hour(path)
    with options.Progress("sweep", 96) as progress:
        began = process_time()
        runs = sweep.grid(load, A100_LLAMA3_8B, progress.update)
        return {"s": process_time() - began, "runs": len(runs)}


def peer_run(path: str, load: Loader) -> dict[str, float]:
    """The same requests and budget in the peer, with its own A100 and Llama-3-8B."""
    return peer.run(load(path), HOUR.max_num_batched_tokens, HOUR.max_num_seqs)


RUNS: dict[str, Callable[[str], dict[str, float]]] = {
    "s10": trace_run,
    "plain": partial(engine_run, load=the_hour, fast=False),
    "fast": partial(engine_run, load=the_hour, fast=True),
    "sweep": partial(sweep_run, load=the_hour),
    "peer": partial(peer_run, load=the_hour),
    "plain, at once": partial(engine_run, load=at_once, fast=False),
    "sweep, at once": partial(sweep_run, load=at_once),
    "peer, at once": partial(peer_run, load=at_once),
    "synthetic": partial(sweep_run, load=lambda path: traces.azure_like("conv", 100_000, seed=1)),
    "grid": grid_run,
}


def in_process(name: str, path: str = "-") -> dict[str, float]:
    """One of RUNS, in a process of its own."""
    command = [sys.executable, __file__, "--trace", path, "--one-run", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise CourseError(f"the run {name!r} ended with exit code {done.returncode}")
    return dict(json.loads(done.stdout))


def peak_mb() -> float:
    """The most memory that this process ever held (peak resident set)."""
    try:
        import resource
    except ImportError:
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def frames_ms(repeats: int = 7) -> float:
    """Milliseconds of one `frames()` of the simulator's twenty requests."""
    from kit.simulators import Setup, frames, load

    setup = Setup(title="twenty", load=load(traces.story_b()), config=Config(max_num_seqs=64, num_blocks=180))
    best = float("inf")
    for _ in range(repeats):
        began = process_time()
        frames(setup)
        best = min(best, process_time() - began)
    return best * 1e3


class Row(NamedTuple):
    """What was measured, beside what it should be: at most `target`, or at least."""

    what: str
    value: float
    target: float
    unit: str
    at_least: bool = False

    def cells(self) -> tuple[str, ...]:
        good = self.value >= self.target if self.at_least else self.value <= self.target
        sign = ">=" if self.at_least else "<="
        return self.what, f"{self.value:.2f}", f"{sign} {self.target:g}", self.unit, "ok" if good else "MISSED"


def decisions() -> list[Row]:
    """What one decision costs, whatever waits."""
    found = []
    for name, make in SCHEDULERS.items():
        for running in (16, 64, 256):
            what = f"{name} schedule + update, {running} running"
            found.append(Row(what, us_per_decision(make, running), 1.0, "us per scheduled request"))
    for name, make in SCHEDULERS.items():
        few, many = (us_per_decision(make, 64, waiting, 15) for waiting in (1_000, 100_000))
        found.append(Row(f"{name} 100,000 waiting against 1,000", many / few, 1.2, "times"))
    found.append(Row("frames() of the twenty requests", frames_ms(), 20.0, "ms"))
    return found


def hours(path: str) -> list[Row]:
    """What a whole trace costs, and what it costs the peer."""
    name, run = Path(path).name, in_process("s10", path)
    plain, fast, swept = (in_process(kind, path) for kind in ("plain", "fast", "sweep"))
    if not plain["end_ns"] == fast["end_ns"] == swept["end_ns"]:
        raise CourseError(f"{name}: the engine, its jumps and the sweep loop do not end at one moment")
    steps = f"{plain['steps']:,} steps"
    found = [
        Row(f"{name} in s10, {run['scheduled'] / 1e6:.2f} million scheduled", run["us"], 1.2, "us per scheduled request"),
        Row("    its peak memory", run["mb"], 150.0, "MB"),
        Row(f"{name} in s11 with jumps, {steps}", fast["s"], 1.5, "s"),
        Row("    in the sweep loop", swept["s"], 0.4, "s"),
        Row("    96 times: 8 budgets x 6 pools x 2 admissions", in_process("grid", path)["s"], 30.0, "s"),
    ]
    if peer.missing():
        print(f"skipped the peer: {peer.missing()}\n")
        return found
    for what, end in (("the hour", ""), ("its first 2,000 at once", ", at once")):
        other = in_process(f"peer{end}", path)
        for whom, kind, target in (("the sweep loop", "sweep", 50.0), ("the plain engine", "plain", 5.0)):
            ours = in_process(f"{kind}{end}", path)
            against = f"{peer.NAME}, {what}: {other['s']:.2f} s against {ours['s']:.2f} s of {whom}"
            found.append(Row(against, other["s"] / ours["s"], target, "times", at_least=True))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", metavar="FILE", help=f"default: {TRACE} in $COURSE_DATA or data/")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--one-run", choices=RUNS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one_run:
        print(json.dumps(RUNS[args.one_run](args.trace)))
        return 0
    path, why = (args.trace, "") if args.trace else traces.find_trace(TRACE)
    measured = [*decisions(), Row("100,000 synthetic requests in the sweep loop", in_process("synthetic")["s"], 1.5, "s")]
    if path is not None:
        measured += hours(os.fspath(path))
    verdicts = [row.cells() for row in measured]
    print(table(("what", "measured", "target", "unit", ""), verdicts))
    if path is None:
        print(f"\nskipped the hour: {why}")
    return int(args.check and any(verdict[-1] == "MISSED" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(options.run(main))

"""How much CPU time a scheduling decision costs, against the targets of the course.

python bench/scheduler.py [--trace FILE] [--check]. CPU time of this process (time.process_time), the best of several
repeats: a shared machine can only make a run slower.
"""

# ruff: noqa: E402  (the path comes before what is found on it)

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "solutions"))

from kit import options, traces
from kit.config import Config
from kit.errors import CourseError
from kit.report import table
from kit.request import Count, Request
from s08_static_batching import Engine
from s09_continuous_batching import ContinuousBatcher
from s10_scheduler import Scheduler

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


def trace_run(path: str) -> dict[str, float]:
    """The whole trace through s10 with engine, cost model and report; meant for a process of its own."""
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


def rows(trace: str | None) -> list[tuple[str, float, float, str]]:
    """(what, measured, target, unit)"""
    found: list[tuple[str, float, float, str]] = []
    for name, make in SCHEDULERS.items():
        for running in (16, 64, 256):
            what = f"{name} schedule + update, {running} running"
            found.append((what, us_per_decision(make, running), 1.0, "us per scheduled request"))
    for name, make in SCHEDULERS.items():
        few, many = (us_per_decision(make, 64, waiting, 15) for waiting in (1_000, 100_000))
        found.append((f"{name} 100,000 waiting against 1,000", many / few, 1.2, "times"))
    if trace is not None:
        command = [sys.executable, __file__, "--trace", trace, "--one-run"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CourseError(done.stderr.strip())
        run = json.loads(done.stdout)
        what = f"{Path(trace).name}, {run['scheduled'] / 1e6:.2f} million scheduled"
        found.append((what, run["us"], 1.2, "us per scheduled request"))
        found.append(("    its peak memory", run["mb"], 150.0, "MB"))
    found.append(("frames() of the twenty requests", frames_ms(), 20.0, "ms"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", metavar="FILE", help=f"default: {TRACE} in $COURSE_DATA or data/")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--one-run", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one_run:
        print(json.dumps(trace_run(args.trace)))
        return 0
    path, why = (args.trace, "") if args.trace else traces.find_trace(TRACE)
    measured = rows(None if path is None else os.fspath(path))
    verdicts = [
        (what, f"{value:.2f}", f"<= {target:g}", unit, "ok" if value <= target else "MISSED")
        for what, value, target, unit in measured
    ]
    print(table(("what", "measured", "target", "unit", ""), verdicts))
    if path is None:
        print(f"\nskipped the trace: {why}")
    return int(args.check and any(verdict[-1] == "MISSED" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(options.run(main))

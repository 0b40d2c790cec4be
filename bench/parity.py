"""How much CPU time s14's decisions cost, and a replay of all that vLLM was recorded on, against the targets of the course.

python bench/parity.py [--check]. CPU time of this process (time.process_time), the best of several repeats: a shared machine can
only make a run slower.
"""

# ruff: noqa: E402  (the path comes before what is found on it)

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import process_time

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "solutions"))

from kit import options
from kit.config import Config
from kit.decisions import first_divergence, replay
from kit.errors import CourseError
from kit.explaining import explaining
from kit.report import table
from kit.request import Request
from kit.workloads import read_workloads
from s14_unified_scheduler import UnifiedScheduler

TRACES = ROOT / "tests" / "data" / "vllm" / "traces.jsonl.gz"


def us_per_decision(running: int, waiting: int = 0, repeats: int = 7) -> float:
    """Microseconds of schedule() + update() per scheduled request, decode only, prefix caching on.

    All `running` requests have been prefilled, with prompts of 32 tokens that no two share; `waiting` more find no seat.
    """
    limits = {"num_blocks": 200_000, "max_num_batched_tokens": 16_384, "reject_unservable": False}
    scheduler = UnifiedScheduler(Config(max_num_seqs=running, prefix_caching=True, **limits))
    for i in range(running + waiting):
        scheduler.add(Request(f"r{i}", range(i * 40, i * 40 + 32), 1_000_000))
    tokens = {f"r{i}": [7] for i in range(running)}
    scheduler.update(scheduler.schedule(), tokens)  # the prefills
    steps = max(20, 20_000 // running)
    best = float("inf")
    for _ in range(repeats):
        began = process_time()
        for _ in range(steps):
            scheduler.update(scheduler.schedule(), tokens)
        best = min(best, process_time() - began)
    return best / (steps * running) * 1e6


def replay_s(make: type, repeats: int = 2) -> float:
    """Seconds to read, replay, compare and print all recorded workloads."""
    best = float("inf")
    for _ in range(repeats):
        began = process_time()
        for name, workload in read_workloads(TRACES):
            found = replay(workload, make)
            json.dumps(found.line(name))
            if first_divergence(workload, found) is not None:
                raise CourseError(f"{name}: a decision differs from vLLM's")
        best = min(best, process_time() - began)
    return best


def rows() -> list[tuple[str, float, float, str]]:
    """(what, measured, target, unit)"""
    found = []
    for running in (16, 64, 256):
        what = f"s14 schedule + update, {running} decode, prefix cache on"
        found.append((what, us_per_decision(running), 3.0, "us per scheduled request"))
    few, many = (us_per_decision(64, waiting, 15) for waiting in (1_000, 100_000))
    found.append(("s14 100,000 waiting against 1,000", many / few, 1.2, "times"))
    found.append(("replay of the 329 traces, compared", replay_s(UnifiedScheduler), 6.0, "s"))
    found.append(("    with every decision explained", replay_s(explaining(UnifiedScheduler), 1), 20.0, "s"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    args = parser.parse_args()
    verdicts = [
        (what, f"{value:.2f}", f"<= {target:g}", unit, "ok" if value <= target else "MISSED")
        for what, value, target, unit in rows()
    ]
    print(table(("what", "measured", "target", "unit", ""), verdicts))
    return int(args.check and any(verdict[-1] == "MISSED" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(options.run(main))

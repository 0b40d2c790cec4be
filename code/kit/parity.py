"""What s14 shows when it runs: the rules at work on the running example, vLLM's decisions beside ours, the prefix cache.

The shape of the file: `main`; the replay of files, with --diff and --explain; the demonstration; one load of the user's choice.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TextIO

from kit import incidents, options
from kit.config import Config
from kit.decisions import LESSON as NUMBER
from kit.decisions import Decisions, first_divergence, recorded, replay, report
from kit.errors import BadTrace, CourseError
from kit.experiments import label
from kit.explaining import explaining, narrowed
from kit.replay import translate
from kit.report import Report, done, heading, table, whole
from kit.request import Request
from kit.workloads import placed_workloads, read_workloads

LESSON = "s14_unified_scheduler"
DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "vllm"
SHOWN = "guided-101201"  # a trace in which a victim was scheduled already


def main(argv: Sequence[str] | None, scheduler: Any, engine: Any) -> int:
    """Parse the command line and run what it asks for; returns the exit code."""
    return options.run(lambda: _run(options.parse(LESSON, argv), scheduler, engine))


def _run(args: argparse.Namespace, scheduler: Any, engine: Any) -> int:
    if args.replay:
        return replay_file(args.replay, scheduler, args.diff, args.explain, args.request, args.steps)
    if args.model:
        from kit import stories

        return stories.tell(args, lambda config: scheduler(config, safe=True), engine)  # what a model reads must be written
    if args.trace:
        result = incidents.run_trace(args, scheduler, engine)
    elif any((args.budget, args.blocks, args.policy, args.config)):
        result = _one_load(args, scheduler, engine)
    else:
        print(f"Every millisecond below is {label()}.")
        result = {
            "the_running_example": the_running_example(scheduler),
            "one_trace": one_trace(scheduler),
            "a_shared_prefix": a_shared_prefix(scheduler, engine),
        }
    options.json_out(args, result)
    return 0


# Files -------------------------------------------------------------------------------------------------------------


def replay_file(
    path: str | Path,
    scheduler: Any,
    diff: bool = False,
    explain: bool = False,
    requests: Sequence[str] = (),
    steps: tuple[int, int] | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Replay every workload of a file. Returns the exit code: 0, 1 for a difference from what was recorded, 2 for an error.

    stdout: a JSON line each; with `explain` sentences instead, narrowed to `requests` and `steps`. With `diff` the first
    difference in full and a verdict go to stderr, and a terminal is spared the JSON.
    """
    out, err = out or sys.stdout, err or sys.stderr
    make = explaining(scheduler) if explain else scheduler
    code, compared, failed, said = 0, 0, 0, False
    differ: list[str] = []
    try:
        workloads = list(placed_workloads(path))
    except CourseError as error:
        print(error, file=err)
        return 2
    for place, name, workload in workloads:
        why = _skipped(workload)
        if why:
            print(f"skipped {name}: {why}", file=err)
            continue
        where = f"{path}, {place}" + (f" ({name})" if name != place else "")
        try:
            found = replay(workload, make)
            if explain:
                said = _print_told(name, found, requests, steps, out) or said
            elif not (diff and out.isatty()):
                print(json.dumps(found.line(name)), file=out)
            if diff:
                if not recorded(workload):
                    raise BadTrace("it carries no decisions to compare with, neither trace nor expect, or an empty one")
                first = first_divergence(workload, found)
                compared += 1
                if first is not None:
                    if not differ:
                        told = found.told or replay(workload, explaining(scheduler)).told
                        print(report(where, first, told), file=err)
                    differ.append(name)
        except BrokenPipeError:
            raise
        except Exception as error:  # say which workload broke the scheduler, and go on with the next
            what = str(error)
            if not isinstance(error, CourseError):
                when = f" in step {error.step}" if hasattr(error, "step") else ""
                what = f"the scheduler raised {type(error).__name__}{when}: {error}"
            print(f"{where}: {what}".replace("\n", "\\n"), file=err)  # an id may hold a line break
            code, failed = 2, failed + 1
    if explain and not said and not code:
        print(f"{path}: nothing to explain there: {_asked(requests, steps)}", file=err)
        code = 2
    if diff:
        print(_verdict(compared, differ, failed), file=err)
        code = code if compared else 2
    return code or int(bool(differ))


def _skipped(workload: Mapping[str, Any]) -> str:
    """Why a workload is not s14's to replay; empty if it is."""
    needs = workload.get("scheduler", NUMBER)
    if needs > NUMBER:
        return f"it is for {needs}"
    if "config" not in workload and "lesson" in workload:  # a field case that tests a lesson
        return "it has no config"
    if needs < NUMBER and isinstance(workload.get("config"), dict):
        config = {key: value for key, value in workload["config"].items() if key != "max_steps"}
        try:
            translate(config, NUMBER)
        except CourseError as error:
            return str(error)
    return ""


def _print_told(name: str, found: Decisions, requests: Sequence[str], steps: tuple[int, int] | None, out: TextIO) -> bool:
    """Print what is asked for; False if there is nothing."""
    first, last = steps or (0, found.totals["steps"])
    said = False
    for step, told in found.told:
        told = narrowed(told, requests) if first <= step <= last else []
        if not any(entry.ids for entry in told) and (requests or not told):
            continue
        if not said:
            print(name, file=out)
            said = True
        print_step(step, told, out)
    return said


def print_step(step: int, told: Sequence[Any], out: TextIO | None = None) -> None:
    """A step in words: its numbers, then a sentence for each thing that happened."""
    head = next((entry.text for entry in told if not entry.ids), "")
    print(f"  step {step}: {head}", file=out)
    for entry in told:
        if entry.ids:
            print(f"    {entry}", file=out)


def _asked(requests: Sequence[str], steps: tuple[int, int] | None) -> str:
    who = f"no step names {' or '.join(requests)}" if requests else "no step was taken"
    return who + (f" from step {steps[0]} to {steps[1]}" if steps else "")


def _verdict(compared: int, differ: Sequence[str], failed: int) -> str:
    names = ", ".join(differ[:8]) + (f" and {len(differ) - 8} more" if len(differ) > 8 else "")
    found = f"{len(differ)} with a difference: {names}" if differ else "no difference"
    if not compared:
        found = "so nothing is known"
    return f"{compared} compared, {found}" + (f"; {failed} could not be" if failed else "")


# The demonstration ---------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    """A paragraph, wrapped for a terminal."""
    print(textwrap.fill(text, 110) + "\n")


RUNNING_EXAMPLE: dict[str, Any] = {
    "config": {
        "block_size": 4, "num_blocks": 8, "max_num_seqs": 3, "max_num_batched_tokens": 12, "long_prefill_token_threshold": 8,
        "prefix_caching": True, "admission": "full_prompt",
    },
    "requests": [
        {"id": "A", "prompt": [*range(17)], "max_tokens": 8},
        {"id": "B", "prompt": [*range(8), *range(50, 54)], "max_tokens": 7},
        {"id": "C", "prompt": [*range(70, 78)], "max_tokens": 3},
        {"id": "D", "prompt": [*range(70, 78)], "max_tokens": 2, "arrival": 8},
    ],
}  # fmt: skip


def the_running_example(scheduler: Any) -> dict[str, Any]:
    """The lesson's four requests, with the reasons."""
    heading("1. The running example, explained")
    found = replay(RUNNING_EXAMPLE, explaining(scheduler))
    _say(
        "Four requests; B begins with eight of A's tokens, D asks for C's prompt again, later. Budget 12, threshold 8, eight "
        "blocks of 4, three seats. Steps count from 0 here, as in a trace. What the scheduler says of the first two, and of those "
        "that evict or take back:"
    )
    for entry, (step, told) in zip(found.steps, found.told):
        if step < 2 or "pre" in entry or "res" in entry:
            print_step(step, told)
    print()
    keys = ("sched", "new", "res", "pre", "fin")
    rows = [
        (entry["step"], *(" ".join(_pairs(entry.get(key, []))) for key in keys), entry["free"][1]) for entry in found.steps
    ]
    print(table(("step", "scheduled", "joined", "resumed", "evicted", "finished", "free"), rows))
    print("\nid:tokens that are scheduled, or that were found in the cache when it joined; free blocks after the step")
    return {"steps": found.steps, "totals": found.totals}


def _pairs(entries: Sequence[Any]) -> list[str]:
    return [f"{entry[0]}:{entry[1]}" if isinstance(entry, list) else entry for entry in entries]


def one_trace(scheduler: Any) -> dict[str, Any]:
    """vLLM's decisions on one workload beside ours, then beside those of a scheduler with one rule changed."""
    heading("2. vLLM's decisions, and ours")
    workload = find_trace(SHOWN)
    found = replay(workload, scheduler)
    first = first_divergence(workload, found)
    hits = sum(hit for entry in found.steps for key in ("new", "res") for _, hit in entry.get(key, []))
    tokens = sum(n for entry in found.steps for _, n in entry["sched"])
    _say(
        f"{SHOWN}, one of the 329 workloads that vLLM 0.33.0's scheduler was recorded on: {len(workload['requests'])} requests by "
        f"{workload['config']['policy']}, {workload['config']['num_gpu_blocks'] - 1} blocks of "
        f"{workload['config']['block_size']}, budget {workload['config']['max_num_batched_tokens']}. Ours takes "
        f"{len(found.steps)} steps, computes {tokens:,} tokens, evicts {found.totals['preemptions']} times and finds {hits:,} "
        f"tokens in the cache: " + ("every decision is the same." if first is None else "the first difference:")
    )
    if first is not None:
        print(report(SHOWN, first) + "\n")
    _say("The same scheduler without the refund of rule R2, which a busy test seldom meets. `--diff` says:")
    changed = without_refund(scheduler)
    other = first_divergence(workload, replay(workload, changed))
    if other is not None:
        print(textwrap.indent(report(SHOWN, other), "  "))
    print()
    _say("All of them: python3 course.py run s14 --replay tests/data/vllm/traces.jsonl.gz --diff")
    return {
        "workload": SHOWN,
        "steps": len(found.steps),
        "preemptions": found.totals["preemptions"],
        "hit_tokens": hits,
        "same": first is None,
        "without_refund": None if other is None else other._asdict(),
    }


def find_trace(name: str) -> dict[str, Any]:
    """A recorded workload of the repository. BadTrace if it is not there."""
    for found, workload in read_workloads(DATA / "traces.jsonl.gz"):
        if found == name:
            return workload
    raise BadTrace(f"{DATA / 'traces.jsonl.gz'} has no workload {name!r}")


def without_refund(scheduler: Any) -> Any:
    """A scheduler that keeps what a victim's tokens cost."""

    class WithoutRefund(scheduler):  # type: ignore[misc, valid-type]
        def preempt(self, victim: Request) -> int:
            super().preempt(victim)
            return 0

    return WithoutRefund


def shared_prefix(count: int = 60, prefix: int = 600, seed: int = 14) -> list[Request]:
    """Requests that begin with the same tokens, a system prompt say; 40-160 tokens of their own; 20 a second."""
    rng = Random(seed)
    common = [rng.randrange(32_000) for _ in range(prefix)]
    requests, now = [], 0.0
    for i in range(count):
        own = [rng.randrange(32_000) for _ in range(rng.randint(40, 160))]
        requests.append(Request(f"r{i}", [*common, *own], rng.randint(16, 64), round(now * 1e9)))
        now += rng.expovariate(20)
    return requests


def a_shared_prefix(scheduler: Any, engine: Any) -> dict[str, Any]:
    """The same load with the prefix cache and without."""
    heading("3. A prefix that all of them share")
    print(f"({label()})\n")
    _say(
        "60 requests at 20 a second, each with the same 600 tokens in front of 40-160 of its own; budget 512, 16 seats, 800 "
        "blocks of 16. A hit is looked up when a request joins, and what is found is neither computed nor paid for."
    )
    columns = ("prefix cache", "tokens computed", "found in the cache", "steps", "TTFT p50", "p99 ms", "virtual s")
    rows = []
    for on in (False, True):
        limits: dict[str, Any] = {"max_num_batched_tokens": 512, "max_num_seqs": 16, "num_blocks": 800}
        counting = Counting(scheduler(Config(**limits, prefix_caching=on)))
        result: Report = done(engine(counting.scheduler, None, shared_prefix()).run())
        ttft = [whole(result.ttft_ms(p)) for p in (50, 99)]
        rows.append(
            ("on" if on else "off", counting.computed, counting.hits, result.num_steps, *ttft, f"{result.duration_s:.2f}")
        )
    print(table(columns, rows))
    return {"rows": [dict(zip(columns, row, strict=True)) for row in rows]}


class Counting:
    """Counts what a scheduler decides: tokens computed, and tokens found in the cache at admissions."""

    def __init__(self, scheduler: Any):
        self.scheduler, self.computed, self.hits = scheduler, 0, 0
        decide: Callable[[], Any] = scheduler.schedule

        def schedule() -> Any:
            batch = decide()
            self.computed += sum(batch.tokens.values())
            self.hits += sum(batch.hits.values())
            return batch

        scheduler.schedule = schedule


# One load of the user's choice ----------------------------------------------------------------------------------------


def _one_load(args: argparse.Namespace, scheduler: Any, engine: Any) -> dict[str, Any]:
    """The shared prefix under the user's own limits."""
    config = options.config_from(args, max_num_batched_tokens=512, max_num_seqs=16, num_blocks=800)
    requests = shared_prefix()
    for i, request in enumerate(requests):
        request.priority = i % 3
    result: Report = engine(scheduler(config), None, requests).run()
    title = "60 requests that begin with the same 600 tokens, priorities 0, 1, 2 in turn"
    incidents.print_summary(title, config, result)
    return result.to_json()

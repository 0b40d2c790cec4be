"""Replay: a file of workloads in, what became of every request out. JSON lines on stdout, everything else on stderr.

Only here are the options of other engines, and of lessons still to come, translated.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from kit.config import Config, positive
from kit.errors import BadConfig, CourseError, RequestRefused
from kit.request import Request
from kit.runner import FakeRunner
from kit.workloads import EOS, parse_abort, parse_request, read_workloads, typed

MAX_STEPS = 300
STUCK_AFTER = 6  # steps in a row that compute nothing while requests wait


# What s10 lacks: the lesson that brings it, its only value before that, and what leaving it out means from then on.
LATER: dict[str, tuple[str, Any, Any]] = {
    "chunked_prefill": ("s11", False, True),
    "prefill_first": ("s11", False, False),
    "long_prefill_token_threshold": ("s11", 0, 0),
    "admission": ("s11", "full_prompt", "chunk"),
    "cpu_blocks": ("s12", 0, 0),
    "skip_blocked": ("s13", False, False),
    "preempt_for_priority": ("s13", False, False),
    "aging_per_step": ("s13", 0, 0),
    "prefix_caching": ("s14", False, False),
}


def _without_null_block(blocks: Any) -> int:
    """vLLM keeps one of its blocks as null."""
    if positive("num_gpu_blocks", blocks) == 1:
        raise BadConfig(
            "num_gpu_blocks is 1; it must be at least 2, for one of them is the null block, which stores nothing"
        )
    return blocks - 1


def _full_isl(on: Any) -> str:
    if not isinstance(on, bool):
        raise BadConfig(f"scheduler_reserve_full_isl is {on!r}; it must be true or false")
    return "full_prompt" if on else "chunk"


OTHER_NAMES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "num_gpu_blocks": ("num_blocks", _without_null_block),
    "enable_chunked_prefill": ("chunked_prefill", lambda on: on),
    "enable_prefix_caching": ("prefix_caching", lambda on: on),
    "scheduler_reserve_full_isl": ("admission", _full_isl),
}


@dataclass
class Result:
    """What became of a workload. requests: id -> the fields of the field cases' `expect`. schedule: one entry a step."""

    requests: dict[str, dict[str, Any]]
    totals: dict[str, Any]
    schedule: list[dict[str, Any]]


@dataclass(eq=False)
class Watched:
    """A request, the output on which it samples EOS (0: never), and what was seen of it."""

    request: Request
    eos_at: int
    first_token_step: int | None = None
    finish_step: int | None = None
    prefix_hits: list[int] = field(default_factory=list)  # tokens, one number an admission

    def row(self) -> dict[str, Any]:
        return {
            "first_token_step": self.first_token_step,
            "finish_step": self.finish_step,
            "finish_reason": self.request.finish_reason,
            "output_tokens": len(self.request.output),
            "preemptions": self.request.num_preemptions,
            "recomputed_tokens": self.request.recomputed_tokens,
            "prefix_hit_tokens_at_admission": self.prefix_hits,
        }


def translate(options: Mapping[str, Any], lesson: str) -> dict[str, Any]:
    """The same options under the names of kit.config.Config. BadConfig for one that `lesson` ("s10") lacks."""
    known = {name: default for name, (since, _, default) in LATER.items() if since <= lesson}
    given: dict[str, str] = {}  # name -> as it was written
    for key, value in options.items():
        name, meaning = OTHER_NAMES.get(key, (key, lambda same: same))
        if given.setdefault(name, key) != key:
            raise BadConfig(f"{given[name]} and {key} set the same thing: leave one of them out")
        since, before, _ = LATER.get(name, ("", None, None))
        if value is None and name in LATER:
            continue  # null is the same as leaving it out
        value = meaning(value)
        if since <= lesson:
            known[name] = value
        elif value != before:
            here, there = json.dumps(value), json.dumps(before)
            raise BadConfig(f"{key} is {here}; {lesson} knows only {there} there, more comes with {since}")
    if known.get("admission") == "to_completion" and lesson < "s13":
        raise BadConfig(f'admission is "to_completion"; {lesson} knows chunk and full_prompt, more comes with s13')
    return known


def replay(workload: Mapping[str, Any], make: Callable[[Config], Any], lesson: str = "s10") -> Result:
    """Run a workload (`config`, `requests`, perhaps `aborts`) through the scheduler that `make(config)` builds.

    In each step: arrivals in the order of (arrival, position), aborts, schedule, one token for each request that has
    caught up, update. Raises a CourseError for a workload that makes no sense.
    """
    options = {"watermark": 0, **typed("config", workload["config"], dict)}
    max_steps = positive("max_steps", options.pop("max_steps", MAX_STEPS))
    run = Run(make(Config.from_dict(translate(options, lesson))), workload)
    idle, end = 0, ""
    while not end:
        run.take_in()
        if not (run.arrivals or run.scheduler.waiting or run.scheduler.running):
            end = "done"
        elif len(run.schedule) == max_steps:
            end = "max"
        else:
            run.step()
            idle = idle + 1 if run.scheduler.waiting and not run.schedule[-1]["tokens"] else 0
            end = "stuck" if idle == STUCK_AFTER else ""
    return run.result(end)


class Run:
    """A workload on its way through a scheduler."""

    def __init__(self, scheduler: Any, workload: Mapping[str, Any]):
        entries = typed("requests", workload.get("requests"), list)
        parsed = map(parse_request, entries, range(len(entries)))
        self.watched = {request: Watched(request, eos_at) for request, eos_at in parsed}
        self.aborts = [parse_abort(entry) for entry in typed("aborts", workload.get("aborts", []), list)]
        self.arrivals = deque(sorted(self.watched, key=lambda request: request.arrival_ns))  # stable: ties keep their order
        self.scheduler = scheduler
        self.stops: dict[str, tuple[int, int]] = {}
        self.runner = FakeRunner()
        self.runner.stops = self.stops
        self.schedule: list[dict[str, Any]] = []

    def take_in(self) -> None:
        """What happens before a step: arrivals, then aborts."""
        step = len(self.schedule)
        while self.arrivals and self.arrivals[0].arrival_ns <= step:
            request = self.arrivals.popleft()
            try:
                self.scheduler.add(request)
                self.stops[request.id] = (self.watched[request].eos_at, EOS)
            except RequestRefused as error:
                request.finish_reason, self.watched[request].finish_step = error.reason, step
        for request_id, at in self.aborts:
            if at == step and (aborted := self.scheduler.abort(request_id)) is not None:
                self.watched[aborted].finish_step = step

    def step(self) -> None:
        """One turn: schedule, execute, update, and note what came of it."""
        step, batch = len(self.schedule), self.scheduler.schedule()
        tokens, _ = self.runner.execute(batch)
        for request in [*batch.admitted, *batch.resumed]:
            self.watched[request].prefix_hits.append(0)
        for request in batch.tokens:
            if request.id in tokens and self.watched[request].first_token_step is None:
                self.watched[request].first_token_step = step
        for request in self.scheduler.update(batch, tokens):
            self.watched[request].finish_step = step
        computed = {request.id: n for request, n in batch.tokens.items()}
        self.schedule.append({"step": step, "tokens": computed, "free_blocks": self.scheduler.pool.num_free})

    def result(self, end: str) -> Result:
        """All of it, in the order of the file."""
        rows: dict[str, dict[str, Any]] = {}
        for request, seen in self.watched.items():
            name = request.id
            while name in rows:  # an id may be used again once its first owner has ended
                name += " again"
            rows[name] = seen.row()
        totals = {
            "end": end,
            "steps": len(self.schedule),
            "preemptions": sum(request.num_preemptions for request in self.watched),
            "free_blocks_at_end": self.scheduler.pool.num_free,
        }
        return Result(rows, totals, self.schedule)


def replay_file(
    path: str | Path, make: Callable[[Config], Any], lesson: str, out: TextIO | None = None, err: TextIO | None = None
) -> int:
    """Replay every workload of a file through `lesson` ("s10"), one JSON line each. Returns the exit code, 0 or 2.

    The file: the field cases, a single workload, a list of them or one a line (JSONL), each also gzipped. One without
    `config`, or for a later lesson, is skipped with a line on `err`; one that fails gets a sentence, and the next is run.
    """
    out, err = out or sys.stdout, err or sys.stderr
    lesson = lesson[:3]  # "s10_scheduler" will do too
    try:
        workloads = list(read_workloads(path))
    except CourseError as error:
        print(error, file=err)
        return 2
    code = 0
    for name, workload in workloads:
        needs = workload.get("scheduler", lesson)
        if needs > lesson or "config" not in workload:
            print(f"skipped {name}: it {f'is for {needs}' if needs > lesson else 'has no config'}", file=err)
            continue
        try:
            result = replay(workload, make, lesson)
        except Exception as error:  # say which case broke the scheduler, and go on with the next
            what = error if isinstance(error, CourseError) else f"the scheduler raised {type(error).__name__}: {error}"
            print(f"{path}, {name}: {what}", file=err)
            code = 2
        else:
            print(json.dumps({"name": name, "requests": result.requests, "totals": result.totals}), file=out)
    return code

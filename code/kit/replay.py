"""Replay: a file of workloads in, what became of every request out. JSON lines on stdout, everything else on stderr.

Only here are the options of other engines, and of lessons still to come, translated.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from kit.config import MOST, Config, positive
from kit.errors import BadConfig, CourseError, RequestRefused
from kit.request import Request
from kit.runner import FakeRunner
from kit.workloads import EOS, parse_abort, parse_request, read_workloads, typed

MAX_STEPS = 300  # of a field case
MOST_STEPS = 100_000  # of anything else: a scheduler that goes round in circles
STUCK_AFTER = 6  # steps in a row that compute nothing while requests wait, or run


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
# What s14 lacks: the only value that it knows, why, and who has it.
GONE: dict[str, tuple[Any, str]] = {
    "prefill_first": (False, "computes prompts and decodes in one step: use s11, s12 or s13"),
    "cpu_blocks": (0, "has no swap space: use s12 or s13"),
    "skip_blocked": (False, "lets nobody pass the head of the queue: use s13"),
    "preempt_for_priority": (False, "preempts for memory alone: use s13"),
    "aging_per_step": (0, "has priorities that stay as they are: use s13"),
}
# What leaving an option out means in a configuration under vLLM's names (num_gpu_blocks): what it means to vLLM.
VLLM_DEFAULTS = {"scheduler_reserve_full_isl": True, "enable_prefix_caching": True}


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
    unified = lesson >= "s14"
    known = {name: default for name, (since, _, default) in LATER.items() if since <= lesson}
    if unified:
        known = {name: default for name, default in known.items() if name not in GONE}
        if "num_gpu_blocks" in options:
            said = {OTHER_NAMES.get(key, (key,))[0] for key in options}
            options = {**{key: on for key, on in VLLM_DEFAULTS.items() if OTHER_NAMES[key][0] not in said}, **options}
    given: dict[str, str] = {}  # name -> as it was written
    for key, value in options.items():
        if key not in OTHER_NAMES and (near := difflib.get_close_matches(key, OTHER_NAMES, 1, 0.85)):
            raise BadConfig(f"unknown option {key!r}; did you mean {near[0]!r}?")
        name, meaning = OTHER_NAMES.get(key, (key, lambda same: same))
        if given.setdefault(name, key) != key:
            raise BadConfig(f"{given[name]} and {key} set the same thing: leave one of them out")
        since, before, _ = LATER.get(name, ("", None, None))
        if value is None and name in LATER:
            continue  # null is the same as leaving it out
        value = meaning(value)
        if unified and key.startswith("enable_") and not isinstance(value, bool):
            raise BadConfig(f"{key} is {json.dumps(value)}; it must be true or false")
        if unified and name in GONE and value not in (GONE[name][0], None):
            raise BadConfig(f"{key} is {json.dumps(value)}; {lesson} {GONE[name][1]}")
        if since <= lesson:
            known[name] = value
        elif value != before:
            here, there = json.dumps(value), json.dumps(before)
            raise BadConfig(f"{key} is {here}; {lesson} knows only {there} there, more comes with {since}")
    if known.get("admission") == "to_completion" and lesson < "s13":
        raise BadConfig(f'admission is "to_completion"; {lesson} knows chunk and full_prompt, more comes with s13')
    if unified and known.get("admission") == "to_completion":
        raise BadConfig(f'admission is "to_completion"; {lesson} promises nobody memory, as vLLM does not: use s13')
    if unified and known.get("policy") == "shortest":
        raise BadConfig(f'policy is "shortest"; {lesson} knows fcfs and priority, as vLLM does: use s10 to s13')
    return known


def replay(
    workload: Mapping[str, Any], make: Callable[[Config], Any], lesson: str = "s10", kind: type[Run] | None = None
) -> Result:
    """Run a workload (`config`, `requests`, perhaps `aborts`) through the scheduler that `make(config)` builds.

    In each step: arrivals in the order of (arrival, position), aborts, schedule, one token for each request that has
    caught up, update. kind: the Run that takes it through; what it returns is returned. Raises a CourseError for a workload
    that makes no sense.
    """
    options = {"watermark": 0, **typed("config", workload.get("config"), dict)}
    max_steps = positive("max_steps", options.pop("max_steps", MOST if "num_gpu_blocks" in options else MAX_STEPS))
    run = (kind or Run)(make(Config.from_dict(translate(options, lesson))), workload, max_steps)
    idle, end = 0, ""
    while not end:
        run.take_in()
        if not (run.arrivals or run.scheduler.waiting or run.scheduler.running):
            end = "done"
        elif run.now >= max_steps or len(run.schedule) == MOST_STEPS:
            end = "max"
        else:
            run.step()
            there = run.scheduler.waiting or run.scheduler.running  # who runs and computes nothing waits as well
            idle = idle + 1 if there and not run.schedule[-1]["tokens"] else 0
            end = "stuck" if idle == STUCK_AFTER else ""
    return run.result(end)


class Run:
    """A workload on its way through a scheduler."""

    def __init__(self, scheduler: Any, workload: Mapping[str, Any], max_steps: int = MAX_STEPS):
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
        self.now, self.max_steps = 0, max_steps  # the step that comes next, the one that no longer comes

    def take_in(self) -> None:
        """What happens before a step: arrivals, then aborts."""
        while self.arrivals and self.arrivals[0].arrival_ns <= self.now:
            request = self.arrivals.popleft()
            try:
                self.scheduler.add(request)
                self.stops[request.id] = (self.watched[request].eos_at, EOS)
            except RequestRefused as error:
                request.finish_reason, self.watched[request].finish_step = error.reason, self.now
        self.abort("before")

    def abort(self, moment: str) -> None:
        """The aborts of this moment of the step."""
        for request_id, at, when in self.aborts:
            if at == self.now and when == moment:
                self.drop(request_id, moment)

    def drop(self, request_id: str, moment: str) -> None:
        """Abort a request; one of nobody is passed over."""
        if (aborted := self.scheduler.abort(request_id)) is not None:
            self.watched[aborted].finish_step = self.now

    def decide(self) -> Any:
        """What this step computes."""
        return self.scheduler.schedule()

    def step(self) -> Any:
        """One turn: schedule, execute, update; notes what came of it, and returns the batch and who finished."""
        batch = self.decide()
        computed = {request.id: n for request, n in batch.tokens.items()}
        self.abort("mid")
        tokens, _ = self.runner.execute(batch)
        hits = getattr(batch, "hits", {})  # from s14 on
        for request in [*batch.admitted, *batch.resumed]:
            self.watched[request].prefix_hits.append(hits.get(request, 0))
        for request in batch.tokens:
            if request.id in tokens and self.watched[request].first_token_step is None:
                self.watched[request].first_token_step = self.now
        finished = self.scheduler.update(batch, tokens)
        for request in finished:
            self.watched[request].finish_step = self.now
        self.schedule.append({"step": self.now, "tokens": computed, "free_blocks": self.scheduler.pool.num_free})
        self.now += 1
        return batch, finished

    def named(self) -> dict[str, Request]:
        """The requests in the order of the file, each by a name of its own."""
        names: dict[str, Request] = {}
        for request in self.watched:
            name = request.id
            while name in names:  # an id may be used again once its first owner has ended
                name += " again"
            names[name] = request
        return names

    def result(self, end: str) -> Result:
        """All of it, in the order of the file."""
        rows = {name: self.watched[request].row() for name, request in self.named().items()}
        totals = {
            "end": end,
            "steps": self.now,
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
        except BrokenPipeError:
            raise
        except Exception as error:  # say which case broke the scheduler, and go on with the next
            what = error if isinstance(error, CourseError) else f"the scheduler raised {type(error).__name__}: {error}"
            print(f"{path}, {name}: {what}".replace("\n", "\\n"), file=err)  # an id may hold a line break
            code = 2
        else:
            print(json.dumps({"name": name, "requests": result.requests, "totals": result.totals}), file=out)
    return code

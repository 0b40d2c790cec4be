"""A replay in vLLM's form: every decision of every step, and the first that differs from a recorded one.

The shape of the file: `DecisionRun`, which notes them; `replay`; `first_divergence` and its report.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kit.config import Config
from kit.errors import BadTrace
from kit.explaining import state
from kit.replay import Result, Run
from kit.replay import replay as replay_any
from kit.request import Request
from kit.workloads import typed

LESSON = "s14"
REASONS = {"stop": "stopped", "length": "length_capped"}  # ours -> vLLM's
ORDER = [
    "add",
    "abort",
    "pre",
    "new",
    "res",
    "sched",
    "free_s",
    "abort_mid",
    "fin",
    "free_u",
    "run",
    "wait",
]  # what a step is compared by, as it falls


@dataclass
class Decisions(Result):
    """Beside what became of the requests: the steps in the form of tests/data/vllm, and every output.

    told: (step, sentences) for each step, if the scheduler explains itself (kit.explaining).
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    told: list[tuple[int, list[Any]]] = field(default_factory=list)

    def line(self, name: str) -> dict[str, Any]:
        """What stands in a line of the replay's output."""
        return {
            "name": name,
            "steps": self.steps,
            "outputs": self.outputs,
            "requests": self.requests,
            "totals": self.totals,
        }


class DecisionRun(Run):
    """A Run that jumps over idle time, and notes each decision."""

    def __init__(self, scheduler: Any, workload: Mapping[str, Any], *limits: int):
        super().__init__(scheduler, workload, *limits)
        self.steps: list[dict[str, Any]] = []
        self.told: list[tuple[int, list[Any]]] = []
        self.split = bool(self.aborts)  # in traces with aborts `free` is two keys
        self.free_after_schedule = 0
        self.dropped: dict[str, list[list[Any]]] = {"before": [], "mid": []}
        self.met: list[str] = []  # who arrived in this step
        self.present = False  # was anybody there when this step began?

    def live(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def take_in(self) -> None:
        while True:
            if self.arrivals and not self.live():
                self.now = max(self.now, min(self.arrivals[0].arrival_ns, self.max_steps))
            self.dropped = {"before": [], "mid": []}
            due = [request for request in self.arrivals if request.arrival_ns <= self.now]
            super().take_in()
            self.met = [request.id for request in due if not str(request.finish_reason).startswith("rejected")]
            if self.live() or self.now >= self.max_steps:
                break
            if self.present:  # the last of them were aborted: a step without work, which counts only if others follow
                self.free_after_schedule = self.scheduler.pool.num_free
                self.abort("mid")
                self.note((), [])
                self.now += bool(self.arrivals)
            if not self.arrivals:
                break

    def abort(self, moment: str) -> None:
        if moment == "before":
            self.present = self.live()
        super().abort(moment)

    def drop(self, request_id: str, moment: str) -> None:
        was, pool = state(self.scheduler, request_id), self.scheduler.pool
        free = pool.num_free
        super().drop(request_id, moment)
        self.dropped[moment].append([request_id, was, pool.num_free - free])

    def decide(self) -> Any:
        batch = super().decide()
        self.free_after_schedule = self.scheduler.pool.num_free
        if hasattr(self.scheduler, "tell_waiting"):
            self.scheduler.tell_waiting(batch)
        return batch

    def step(self) -> Any:
        try:
            batch, finished = super().step()
        except Exception as error:
            error.step = self.now  # type: ignore[attr-defined]  # for whoever reports it
            raise
        self.now -= 1
        self.note((batch,), finished)
        self.now += 1
        return batch, finished

    def note(self, batches: tuple[Any, ...], finished: list[Request]) -> None:
        """Write this step down. batches: its batch; none if there was nobody to schedule."""
        free = [self.free_after_schedule, self.scheduler.pool.num_free]
        entry: dict[str, Any] = {"step": self.now, "sched": [], "add": self.met, "abort": self.dropped["before"]}
        for batch in batches:
            entry["sched"] = [[request.id, n] for request, n in batch.tokens.items()]
            for key, joined in (("new", batch.admitted), ("res", batch.resumed)):
                entry[key] = [[request.id, batch.hits.get(request, 0)] for request in joined]
            entry["pre"] = [request.id for request in batch.preempted]
        if self.split:
            entry["free_s"] = free[0]
        entry["abort_mid"] = self.dropped["mid"]
        reasons = [(request.id, request.finish_reason) for request in finished]
        entry["fin"] = [[request_id, REASONS.get(str(reason), reason)] for request_id, reason in reasons]
        entry |= {"free_u": free[1]} if self.split else {"free": free}
        entry["run"] = [request.id for request in self.scheduler.running]
        entry["wait"] = [request.id for request in self.scheduler.waiting]
        kept = ("step", "sched", "run", "wait")
        self.steps.append({key: value for key, value in entry.items() if value != [] or key in kept})
        if hasattr(self.scheduler, "take_told"):
            self.told.append((self.now, self.scheduler.take_told()))

    def result(self, end: str) -> Decisions:
        base = super().result(end)
        outputs = {name: list(request.output) for name, request in self.named().items()}
        return Decisions(base.requests, base.totals, base.schedule, self.steps, outputs, self.told)


def replay(workload: Mapping[str, Any], make: Callable[[Config], Any], lesson: str = LESSON) -> Decisions:
    """kit.replay.replay, with every decision. The scheduler is s14's, or one with the same Batch."""
    result = replay_any(workload, make, lesson, DecisionRun)
    assert isinstance(result, Decisions)
    return result


# The first difference ------------------------------------------------------------------------------------------------


class Divergence(NamedTuple):
    """Where ours first departs from theirs. step: None for what is known only at the end. rule: the rules to look at."""

    step: int | None
    what: str
    rule: str
    theirs: str
    ours: str


class Rule(NamedTuple):
    """The names of the rules that decide a thing, and what they say."""

    names: str
    says: str


RULES = {
    "add": Rule("R9", "requests are added in the order of (arrival, position)"),
    "abort": Rule("abort", "takes effect at once, in every state"),
    "abort_mid": Rule("abort", "between schedule and update the output is dropped, blocks and seat are free at once"),
    "pre": Rule("R2", "allocate; while that fails, evict a victim and try again"),
    "join": Rule("R4, R5", "the head joins if seat, budget and blocks allow it, and nobody was evicted"),
    "hit": Rule("R4a, R6, R7", "the longest chain of full cached blocks, one token at least left to compute"),
    "threshold": Rule("R0", "the long-prefill threshold is active only if running + waiting > 1"),
    "tokens": Rule("R1, R4b-d", "known less computed, capped by the threshold and by the budget"),
    "refund": Rule("R2", "a victim that was scheduled already loses its entry, and its tokens return to the budget"),
    "sched": Rule("R1", "running requests in order of admission, then those that join"),
    "free_s": Rule("R5, R6", "blocks are taken for what is computed, hits leave the free list"),
    "fin": Rule("R9", "a stop id, then the length, end a request"),
    "free_u": Rule("R9, R6", "who finishes frees its blocks at once"),
    "run": Rule("R1", "the order of admission; who resumes is appended"),
    "wait": Rule("R3", "a victim goes to the front by FCFS, to its key's place by priority"),
    "output": Rule("R8", "a request samples exactly when computed equals known"),
}
FATES = {  # the fields of `expect` -> the rules to look at
    "first_token_step": Rule("R4, R5", "when it may join"),
    "finish_step": Rule("R1, R9", "how far it gets in each step"),
    "finish_reason": Rule("R9", "what ends it"),
    "output_tokens": Rule("R9", "what ends it"),
    "preemptions": Rule("R2", "who is evicted"),
    "recomputed_tokens": Rule("R3", "a preempted request loses all that it had stored"),
    "prefix_hit_tokens_at_admission": RULES["hit"],
}


TOTALS = ("end", "steps", "preemptions", "free_blocks_at_end")
EXPECTED = ("requests", "schedule", *TOTALS)
PAIRS = ("sched", "new", "res", "fin", "abort", "abort_mid")  # lists of lists; the others are of ids


def recorded(workload: Mapping[str, Any]) -> bool:
    """Does a workload carry decisions to compare with?"""
    return "trace" in workload or bool(workload.get("expect"))


def first_divergence(workload: Mapping[str, Any], ours: Decisions) -> Divergence | None:
    """Compare with the decisions that the workload carries: `trace`, or else the field cases' `expect`."""
    if "trace" not in workload:
        return next(_against_expect(typed("expect", workload.get("expect"), dict), ours), None)
    trace = typed("trace", workload["trace"], dict)
    theirs = typed("trace.steps", trace.get("steps"), list)
    config = typed("config", workload.get("config"), dict)
    found = next(_against_steps(theirs, ours.steps, config), None)
    outputs = typed("trace.outputs", trace.get("outputs", {}), dict)
    if found is None:
        for name, tokens in outputs.items():
            if tokens != ours.outputs.get(name):
                found = _divergence(None, f"outputs of {name}", RULES["output"], tokens, ours.outputs.get(name))
                break
    return found


def _divergence(step: int | None, what: str, rule: Rule, theirs: Any, ours: Any) -> Divergence:
    return Divergence(step, what, f"{rule.names} ({rule.says})", show(theirs), show(ours))


def _against_steps(theirs: list[Any], ours: list[dict[str, Any]], config: Mapping[str, Any]) -> Iterator[Divergence]:
    for i, recorded_step in enumerate(theirs):
        wanted = _whole(typed(f"trace.steps: item {i + 1}", recorded_step, dict))
        if i == len(ours):
            yield _divergence(wanted["step"], "the step itself", RULES["sched"], wanted["sched"], "ended before it")
            return
        got = _whole(ours[i])
        if wanted["step"] != got["step"]:
            step = min(wanted["step"], got["step"])
            said = [f"step {one['step']}: {show(one['sched'])}" for one in (wanted, got)]
            yield _divergence(step, "which step comes next", RULES["sched"], *said)
            return
        for key in ORDER:
            if key not in wanted:
                continue
            a, b = wanted[key], got[key]
            if key == "wait" and config.get("policy") == "priority":
                a, b = sorted(a), sorted(b)
            if a != b:
                yield _name_rule(key, wanted, got, config)
                return
    if len(ours) > len(theirs):
        extra = ours[len(theirs)]
        yield _divergence(extra["step"], "the step itself", RULES["sched"], "ended before it", extra["sched"])


def _whole(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A step with all its lists, and the free blocks under one pair of names where they were recorded. Strict about both."""
    whole: dict[str, Any] = {key: [] for key in ORDER if not key.startswith("free")} | dict(entry)
    if not _is_number(whole.get("step")):
        raise BadTrace(f"trace.steps: a step's number is {whole.get('step')!r}; it must be a whole number")
    where = f"trace.steps: step {whole['step']}"
    _known(where, entry, ("step", "free", *ORDER))
    if "free" in whole:
        free = whole.pop("free")
        if not (isinstance(free, list) and len(free) == 2 and all(map(_is_number, free))):
            raise BadTrace(f"{where}: free is {repr(free)[:60]}; it must be two numbers, after schedule and after update")
        whole["free_s"], whole["free_u"] = free
    for key in ORDER:
        if key.startswith("free"):
            if key in whole and not _is_number(whole[key]):
                raise BadTrace(f"{where}: {key} is {repr(whole[key])[:60]}; it must be a whole number")
            continue
        for one in typed(f"{where}: {key}", whole[key], list):
            typed(f"{where}: an entry of {key}", one, list if key in PAIRS else str)
            if key in PAIRS and len(one) != (3 if key.startswith("abort") else 2):
                raise BadTrace(f"{where}: an entry of {key} is {repr(one)[:60]}; it must be an id and what belongs to it")
    return whole


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _known(what: str, keys: Iterable[str], known: Sequence[str]) -> None:
    """BadTrace for the first key that nobody would compare."""
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise BadTrace(
                f"{what}: unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
            )


def _name_rule(key: str, theirs: dict[str, Any], ours: dict[str, Any], config: Mapping[str, Any]) -> Divergence:
    """Which rule decided what differs first."""
    step, a, b = theirs["step"], theirs[key], ours[key]
    words = WORDS.get(key, key)
    if key in ("new", "res"):
        same = [entry[0] for entry in a] == [entry[0] for entry in b]
        return _divergence(step, "prefix hits" if same else words, RULES["hit" if same else "join"], a, b)
    if key == "sched":
        refund = bool(theirs["pre"]) and config.get("policy") == "priority"
        for one, other in zip(a, b):
            if one[0] == other[0] and one[1] != other[1]:
                few, many = sorted((one[1], other[1]))
                threshold = 0 < few == config.get("long_prefill_token_threshold") < many
                rule = RULES["threshold" if threshold else "refund" if refund else "tokens"]
                return _divergence(step, f"tokens of {one[0]}", rule, one[1], other[1])
        if refund and len(a) != len(b):
            return _divergence(step, words, RULES["refund"], a, b)
    return _divergence(step, words, RULES[key], a, b)


WORDS = {
    "add": "arrivals",
    "abort": "aborted before the step",
    "pre": "evicted",
    "new": "admitted",
    "res": "resumed",
    "sched": "scheduled",
    "free_s": "free blocks after schedule",
    "abort_mid": "aborted in mid-step",
    "fin": "finished",
    "free_u": "free blocks after update",
    "run": "running",
    "wait": "waiting",
}


def _against_expect(expect: dict[str, Any], ours: Decisions) -> Iterator[Divergence]:
    """The first steps in detail if they are given; then the fates of the requests, earliest first; then the totals."""
    _known("expect", expect, EXPECTED)
    ran = {entry["step"]: entry for entry in ours.schedule}
    for entry in typed("expect.schedule", expect.get("schedule", []), list):
        step = typed("expect.schedule: an entry's step", typed("expect.schedule: an entry", entry, dict).get("step"), int)
        _known(f"expect.schedule: step {step}", entry, ("step", "tokens", "free_blocks"))
        mine = ran.get(step, {"tokens": {}})
        if mine["tokens"] != entry.get("tokens"):
            yield _divergence(step, "scheduled", RULES["tokens"], entry.get("tokens"), mine["tokens"])
        if "free_blocks" in entry and mine.get("free_blocks", entry["free_blocks"]) != entry["free_blocks"]:
            yield _divergence(step, "free blocks", RULES["free_u"], entry["free_blocks"], mine["free_blocks"])
    fates = []
    for name, row in typed("expect.requests", expect.get("requests", {}), dict).items():
        if name not in ours.requests:
            raise BadTrace(f"expect.requests: the workload has no request {name!r}")
        mine = ours.requests[name]
        _known(f"expect.requests: {name}", typed(f"expect.requests: {name}", row, dict), list(mine))
        for what, value in typed(f"expect.requests: {name}", row, dict).items():
            if mine.get(what) != value:
                steps = [n for n in (value, mine.get(what)) if what.endswith("_step") and isinstance(n, int)]
                at = min(steps, default=None)
                rule = FATES.get(what, RULES["sched"])
                fates.append(_divergence(at, f"{what} of {name}", rule, value, mine.get(what)))
    yield from sorted(fates, key=lambda one: (one.step is None, one.step or 0))
    for what in TOTALS:
        if what in expect and expect[what] != ours.totals[what]:
            yield _divergence(None, what, RULES["sched"], expect[what], ours.totals[what])


def show(value: Any) -> str:
    """A part of a step as a person reads it: `r1 1, r2 8`; an empty list is `nobody`."""
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list):
        parts = [" ".join(map(str, one)) if isinstance(one, (list, tuple)) else str(one) for one in value]
        return ", ".join(parts) or "nobody"
    return str(value)


def report(name: str, found: Divergence, told: list[tuple[int, list[Any]]] | None = None) -> str:
    """A divergence in full: workload, step, rule, theirs, ours, and what ours says about that step."""
    where = "at the end" if found.step is None else f"step {found.step}"
    rows = [("what", found.what), ("rule", found.rule), ("theirs", found.theirs), ("ours", found.ours)]
    lines = [f"{name}, {where}: the first difference", *(f"  {label:8}{text}" for label, text in rows)]
    own = [entry for step, entries in told or [] if step == found.step for entry in entries]
    own.sort(key=lambda entry: bool(entry.ids))  # the step's numbers first
    if own:
        lines += ["  ours, explained:", *(f"    {entry}" for entry in own)]
    return "\n".join(lines)

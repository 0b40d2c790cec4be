"""What a simulator knows: `frames(setup)` runs a lesson's real scheduler in its real engine and keeps every step.

The shape of the file: `Setup`, what to run; `Frame`, one step; `frames`; `why`, who is to blame for a wait; the presets.
Standard library only and pure: the same setup gives the same frames. kit.drawing makes the picture, kit.widgets the knobs.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any

from kit import traces
from kit.config import Config
from kit.report import Report, percentile
from kit.request import Count, Request
from kit.traces import EIGHT_OUTPUTS, EIGHT_SLOTS

S08, S09, S10 = "s08_static_batching", "s09_continuous_batching", "s10_scheduler"
EXPLAIN_AT_ONCE = 32  # with more than this many waiting, the reasons of a step are looked up when somebody asks
MAX_STEPS = 20_000

Load = tuple[tuple[str, int, int, int, float], ...]  # (id, prompt tokens, max_tokens, arrival in ns, priority)


def load(requests: Iterable[Request]) -> Load:
    """Requests as plain data: a run uses requests up, a setup is run again and again."""
    return tuple((r.id, len(r.prompt), r.max_tokens, r.arrival_ns, r.priority) for r in requests)


@dataclass(frozen=True)
class Question:
    """What to predict before the run: the words, a unit, the largest answer, and what reads the answer off the run."""

    words: str
    unit: str
    top: int
    answer: Callable[[list[Frame]], int] = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One run: which scheduler, which requests, which limits.

    lesson: s08_static_batching, s09_continuous_batching or s10_scheduler; the first two use max_num_seqs alone.
    """

    title: str
    load: Load
    config: Config
    lesson: str = S10
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A running request as it was in one step: tokens whose KV is stored, tokens known, physical blocks."""

    request: Request
    computed: int
    known: int
    blocks: tuple[int, ...]


class Frame:
    """One step, between decision and result: `schedule()` has answered, no token has been sampled yet.

    index: its place in the run, from 0. start_ns: the virtual clock. batch: what the scheduler answered.
    running, waiting: the queues in order; a waiting request comes with the tokens it has to compute.
    """

    __slots__ = ("_reasons", "_running", "batch", "index", "run", "start_ns", "step", "waiting")

    def __init__(self, run: Run, step: int, start_ns: int, batch: Any, running: list, waiting: tuple):
        self.run, self.step, self.start_ns = run, step, start_ns
        self.batch, self._running, self.waiting = batch, running, waiting
        self._reasons: dict[str, Any] | None = None
        self.index = len(run.frames)

    @property
    def number(self) -> int:
        """The step, counted from 1; one in which the clock jumps to the next arrival is counted too."""
        return self.index + 1

    @property
    def running(self) -> list[Member]:
        return [Member(*member) for member in self._running]

    @property
    def reasons(self) -> dict[str, Any]:
        """Why each waiting request waits, by id: the scheduler's own `explain`."""
        if self._reasons is None:
            self._reasons = Run(self.run.setup, ask=self.index).frames[self.index]._reasons or {}
        return self._reasons

    @property
    def end_ns(self) -> int:
        return self.run.report.end_ns[self.step] if self.batch.tokens else self.start_ns

    @property
    def used_blocks(self) -> int:
        return sum(len(member[3]) for member in self._running)

    @property
    def kinds(self) -> list[tuple[Request, int, str]]:
        """What the step computes, in order: (request, tokens, `decode`, `prefill` or `recompute`)."""
        before = {request: computed for request, computed, *_ in self._running}
        kinds = []
        for request, n in self.batch.tokens.items():
            first = before.get(request, n) - n == 0
            kinds.append((request, n, ("recompute" if request in self.batch.resumed else "prefill") if first else "decode"))
        return kinds

    @property
    def totals(self) -> Totals:
        """The counters as they stand when this step has ended."""
        return self.run.totals(self.index)

    @property
    def is_last(self) -> bool:
        return self.index == len(self.run.frames) - 1

    @property
    def is_stuck(self) -> bool:
        """Nothing was computed, and nothing that is still to arrive can change that."""
        return self.is_last and self.run.report.end == "stuck"


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters up to a step. Times are milliseconds, modelled; NaN before the first token. TTFT counts all who got one."""

    finished: int
    refused: int
    ttft_mean_ms: float
    ttft_p95_ms: float
    preemptions: int
    prefill_tokens: int
    decode_tokens: int
    recomputed_tokens: int


class Run:
    """A finished run and its frames. ask: the index of a frame whose reasons are wanted however many wait."""

    def __init__(self, setup: Setup, ask: int = -1):
        self.setup = setup
        self.frames: list[Frame] = []
        self.requests = [Request(i, range(p), m, t, priority, output=Count()) for i, p, m, t, priority in setup.load]
        self.scheduler = _scheduler(setup)
        engine = import_module(S08).Engine(self.scheduler, None, self.requests)
        self.cost_label: str = engine.runner.cost.label
        self._watch(engine, ask)
        self.report: Report = engine.run(MAX_STEPS)
        while len(self.frames) > 1 and _same_idle(*self.frames[-2:]):
            self.frames.pop()  # of a run that is stuck one idle step says it all

    def _watch(self, engine: Any, ask: int) -> None:
        """Keep what every schedule() call leaves behind. References and tuples: a step costs microseconds."""
        scheduler, report, frames = self.scheduler, engine.report, self.frames
        decide, explain = scheduler.schedule, scheduler.explain
        slots_only = self.setup.lesson != S10
        waiting: tuple[tuple[Request, int], ...] = ()

        def schedule() -> Any:
            nonlocal waiting
            batch = decide()
            queue = scheduler.waiting
            if slots_only and not batch.tokens:
                return batch  # the clock jumps to the next arrival: no slot is held meanwhile
            running = [(r, r.num_computed_tokens, r.num_tokens, tuple(r.blocks)) for r in scheduler.running]
            if len(queue) != len(waiting) or batch.admitted or batch.resumed or batch.preempted:
                waiting = tuple((request, request.num_tokens) for request in queue)
            frame = Frame(self, report.num_steps, engine.clock_ns, batch, running, waiting)
            if len(waiting) <= EXPLAIN_AT_ONCE or frame.index == ask:
                frame._reasons = explain(batch) if waiting else {}
            frames.append(frame)
            return batch

        scheduler.schedule = schedule

    @cached_property
    def _history(self) -> tuple[list[tuple[int, int, int, int]], list[int], list[float], list[int]]:
        """Per frame the running sums; then the frames of the first tokens, their TTFTs in ms; then the finish times."""
        sums, first, ttfts, seen = [], [], [], set()
        preemptions = prefill = decode = thrown = 0
        for frame in self.frames:
            batch = frame.batch
            preemptions += len(batch.preempted)
            thrown += batch.thrown_away
            computed = sum(batch.tokens.values())
            fed = sum(batch.tokens.get(r, 0) for r in batch.admitted) + sum(batch.tokens.get(r, 0) for r in batch.resumed)
            prefill += fed
            decode += computed - fed
            sums.append((preemptions, prefill, decode, thrown))
            for request in batch.admitted:
                if request in batch.tokens and request.id not in seen:
                    seen.add(request.id)
                    first.append(frame.index)
                    ttfts.append((frame.end_ns - request.arrival_ns) / 1e6)
        return sums, first, ttfts, [row.finish_ns for row in self.report.finished]

    def totals(self, index: int) -> Totals:
        sums, first, ttfts, finishes = self._history
        so_far = ttfts[: bisect_right(first, index)]
        preemptions, prefill, decode, thrown = sums[index]
        end_ns = self.frames[index].end_ns
        return Totals(
            bisect_right(finishes, end_ns),
            sum(request.arrival_ns <= self.frames[index].start_ns for request, _ in self.report.refused),
            sum(so_far) / len(so_far) if so_far else float("nan"),
            percentile(so_far, 95),
            preemptions,
            prefill,
            decode,
            thrown,
        )

    @cached_property
    def slots(self) -> list[tuple[int, Request, int, int]]:
        """s08 and s09: who sat in which slot: (slot, request, first frame, last frame)."""
        seats: list[tuple[int, Request, int, int]] = []
        sitting: dict[Request, tuple[int, int]] = {}
        for frame in self.frames:
            now = [member[0] for member in frame._running]
            for request in [request for request in sitting if request not in now]:
                seats.append((sitting[request][0], request, sitting[request][1], frame.index - 1))
                del sitting[request]
            taken = {slot for slot, _ in sitting.values()}
            free = (slot for slot in range(len(now) + len(taken)) if slot not in taken)
            for request in now:
                if request not in sitting:
                    sitting[request] = next(free), frame.index
        return [*seats, *((slot, request, start, self.frames[-1].index) for request, (slot, start) in sitting.items())]

    @cached_property
    def places(self) -> dict[str, int]:
        """Request id -> its place in the load: what a picture takes its colour from."""
        return {request.id: place for place, request in enumerate(self.requests)}

    @cached_property
    def series(self) -> dict[str, list[int]]:
        """Per frame: requests running, blocks used, tokens computed."""
        return {
            "running": [len(frame._running) for frame in self.frames],
            "blocks": [frame.used_blocks for frame in self.frames],
            "tokens": [sum(frame.batch.tokens.values()) for frame in self.frames],
        }


def frames(setup: Setup) -> list[Frame]:
    """Every step of a run, in order, decided by the lesson's own scheduler: the learner's code where it is written."""
    return Run(setup).frames


def _scheduler(setup: Setup) -> Any:
    module = import_module(setup.lesson)
    if setup.lesson == S10:
        return module.Scheduler(setup.config)
    batcher = module.StaticBatcher if setup.lesson == S08 else module.ContinuousBatcher
    return batcher(setup.config.max_num_seqs)


def _same_idle(frame: Frame, later: Frame) -> bool:
    return not any((frame.batch.tokens, later.batch.tokens, later.batch.preempted)) and frame.waiting == later.waiting


@dataclass(frozen=True, slots=True)
class Why:
    """Why a request waits: the rule with its numbers, and who is to blame (an id; None if nobody is), in words too."""

    request: str
    rule: str
    text: str
    blame: str | None
    blame_text: str


def why(frame: Frame, request_id: str) -> Why | None:
    """The reason of a waiting request, followed to the one who causes it. None if it does not wait in this frame.

    Nobody overtakes the head of the queue, so everyone behind it waits for the head; the head waits for tokens, seats or
    blocks, and then whoever has most of what it needs is to blame, or the head itself if no step could ever take it.
    """
    wait = frame.reasons.get(request_id)
    if wait is None:
        return None
    head = frame.waiting[0][0].id
    if request_id != head and frame.run.setup.lesson == S10:
        blame = f"{head}, for nobody overtakes the head, and it {in_words(frame.reasons[head])}"
        return Why(request_id, wait.rule, in_words(wait), head, blame)
    return Why(request_id, wait.rule, in_words(wait), *_culprit(frame, request_id, wait))


RULES = {
    "batch": "batch closed, {0:,} of it still running",
    "slots": "needs a slot, {1:,} free",
    "seats": "needs a seat, all {1:,} are taken",
    "eviction": "this step evicts, so nobody joins",
    "budget": "needs {0:,} tokens, {1:,} left",
    "blocks": "needs {0:,} blocks, {1:,} to be had",
    "thrash": "back-pressure: the pool thrashes",
    "behind": "would fit, waits for the head",
}


def in_words(wait: Any) -> str:
    """A reason in few words. From its rule and numbers, because the text of a Wait is the learner's own."""
    return RULES[wait.rule].format(wait.needed, wait.available) if wait.rule in RULES else str(wait.text)


def _culprit(frame: Frame, request_id: str, wait: Any) -> tuple[str | None, str]:
    running, config = frame.running, frame.run.setup.config
    if wait.rule == "budget":
        if wait.needed > config.max_num_batched_tokens:
            never = f"no step may compute more than {config.max_num_batched_tokens:,} tokens"
            return request_id, f"{request_id} itself, which waits for ever: {never}"
        if frame.batch.tokens:
            biggest = max(frame.batch.tokens, key=lambda request: frame.batch.tokens[request])
            return biggest.id, f"{biggest.id}, which takes {frame.batch.tokens[biggest]:,} tokens of this step"
    if wait.rule == "blocks" and wait.needed > config.usable_blocks:
        never = f"admissions may fill {config.usable_blocks:,} blocks at most"
        return request_id, f"{request_id} itself, which waits for ever: {never}"
    if wait.rule in ("blocks", "eviction", "thrash") and running:
        holder = max(running, key=lambda member: len(member.blocks))
        held = f"{holder.request.id}, which holds {len(holder.blocks):,} of {config.num_blocks:,} blocks"
        if request_id in (request.id for request in frame.batch.preempted):
            held += f", and {request_id}, admitted last, was evicted for it"
        return holder.request.id, held
    if running:
        left = {m.request: m.request.max_tokens - (m.known - len(m.request.prompt)) for m in running}
        pick = max if wait.rule == "batch" else min
        last = pick(left, key=lambda request: left[request])
        place = "seat" if wait.rule == "seats" else "slot"
        verb = "keeps the batch closed until" if wait.rule == "batch" else f"is the first to free its {place}, at"
        return last.id, f"{last.id}, which {verb} the end of step {frame.number + left[last] - 1:,}"
    return None, ""


# The presets: what a simulator starts on.


def _finished(run: list[Frame]) -> int:
    return run[-1].totals.finished


def _back(run: list[Frame]) -> int:
    return next((frame.number for frame in run if frame.batch.resumed), 0)


def _preemptions(run: list[Frame]) -> int:
    return run[-1].totals.preemptions


def presets(lesson: str = S10) -> dict[str, Setup]:
    """The setups that a lesson's simulator offers, the first one shown first."""
    if lesson != S10:
        return {"eight requests": slots_setup(lesson)}
    small = Config(max_num_batched_tokens=8, max_num_seqs=4, num_blocks=5, block_size=4, watermark=0.0)
    large = Config(num_blocks=180, max_num_seqs=64)
    twenty, early = load(traces.story_b()), load(traces.story_b(order_first=("r2", "r4", "r6")))
    fits = tuple(entry for entry in twenty if entry[1] + entry[2] - 1 <= 40 * 16)
    return {
        "running example": Setup(
            title="The running example: A, B, C, D",
            load=load(traces.running_example()),
            config=small,
            question=Question("In which step does C, evicted, compute again? (0: never)", "", 9, _back),
        ),
        "evil twin": Setup(
            title="The evil twin: A, B, D",
            load=load(traces.evil_twin()),
            config=replace(small, reject_unservable=False),
            question=Question("How many of the three finish?", "requests", 3, _finished),
        ),
        "story A: stuck behind the head": Setup(
            title="Story A: 60 requests, five with long prompts",
            load=load(traces.story_a()),
            config=Config(max_num_batched_tokens=512, num_blocks=2000, max_num_seqs=64, reject_unservable=False),
            question=Question("How many of the 60 finish?", "requests", 60, _finished),
        ),
        "twenty requests": Setup(
            title="Story B: twenty requests",
            load=twenty,
            config=large,
            question=Question("How many preemptions?", "preemptions", 20, _preemptions),
        ),
        "twenty, budget 128": Setup(
            title="Story B, with r2, r4, r6 first",
            load=early,
            config=replace(large, max_num_batched_tokens=128, reject_unservable=False),
            question=Question("How many of the 20 finish?", "requests", 20, _finished),
        ),
        "thrash": Setup(
            title=f"Thrash: the {len(fits)} smaller requests of story B",
            load=fits,
            config=replace(large, num_blocks=40),
            question=Question("How many preemptions?", "preemptions", 40, _preemptions),
        ),
        "shortest first, near saturation": Setup(
            title="Story C: who pays for a policy?",
            load=load(traces.story_c(n=200, rate=18)),
            config=Config(max_num_batched_tokens=2304, num_blocks=4000, max_num_seqs=32, policy="shortest"),
            question=Question("How long is the longest TTFT?", "s", 20, lambda run: round(_longest_ttft_s(run))),
        ),
    }


def _longest_ttft_s(run: list[Frame]) -> float:
    return run[0].run.report.ttft_ms(100) / 1e3


def slots_setup(
    lesson: str,
    slots: int = EIGHT_SLOTS,
    count: int = len(EIGHT_OUTPUTS),
    spread: float = 1.0,
    gap_ms: float = 0.0,
    seed: int = 8,
) -> Setup:
    """Requests for the simulators of s08 and s09: the lessons' eight, and more like them.

    spread: how far the lengths are from their mean: 0 makes all equal, 1 leaves them as they are. From the ninth on they
    are exponential. gap_ms: the mean time between two arrivals (exponential too); 0: all are there from the start.
    """
    rng = random.Random(seed)
    mean = sum(EIGHT_OUTPUTS) / len(EIGHT_OUTPUTS)
    entries, now = [], 0.0
    for i in range(count):
        tokens = EIGHT_OUTPUTS[i] if i < len(EIGHT_OUTPUTS) else mean * min(rng.expovariate(1), 4)
        gap = rng.expovariate(1)
        entries.append((f"r{i}", 4, max(1, round(mean + spread * (tokens - mean))), round(now * 1e6), 0.0))
        now += gap * gap_ms
    kind = "static batching" if lesson == S08 else "continuous batching"
    when = "all there from the start" if gap_ms == 0 else f"one every {gap_ms:g} ms on average"
    return Setup(
        title=f"{count} requests in {slots} slot{'s' * (slots != 1)}, {when}",
        load=tuple(entries),
        config=Config(max_num_seqs=slots),
        lesson=lesson,
        question=Question(f"Which share of {kind}'s slot-steps makes a token?", "%", 100, _share),
    )


def _share(run: list[Frame]) -> int:
    return round(100 * utilisation(run))


def utilisation(run: list[Frame]) -> float:
    """s08 and s09: tokens made / (slots * steps), over a whole run."""
    slots = run[0].run.setup.config.max_num_seqs
    return sum(len(frame.batch.tokens) for frame in run) / (slots * len(run))

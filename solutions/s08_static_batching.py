"""s08 adds the loop of an inference engine, and the simplest scheduler that can sit in it: the static batcher.

The shape of the file: `Batch`, what one step computes; `StaticBatcher`, who decides it; `CostRunner` and `Engine`, which
execute it on a virtual clock; two metrics; `main`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from kit import fastforward
from kit.config import positive
from kit.errors import DuplicateRequest, RequestRefused
from kit.exercise import exercise
from kit.report import Report
from kit.request import Request, fresh
from kit.runner import Runner, sampling
from s03_step_cost import A100_LLAMA3_8B, CostModel

STUCK_AFTER = 50  # idle steps in a row, with no arrival left that could change anything


class Wait(NamedTuple):
    """Why a request waits: the rule that holds it back, and the two numbers it compares: `needed` exceeds `available`."""

    rule: str
    needed: int
    available: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True, eq=False)
class Batch:
    """What one step computes, in order, and what happened to the queues while that was decided."""

    tokens: dict[Request, int] = field(default_factory=dict)  # request -> how many of its tokens this step computes
    admitted: list[Request] = field(default_factory=list)  # run for the first time
    resumed: list[Request] = field(default_factory=list)  # run again after a preemption
    preempted: list[Request] = field(default_factory=list)  # lost their KV to make room
    swapped: list[Request] = field(default_factory=list)  # of the preempted, those who moved their KV to the CPU (s12)
    swapped_in: list[Request] = field(default_factory=list)  # run again, with the KV that they had (s12)
    blocks_to_swap_out: list[tuple[int, int]] = field(
        default_factory=list
    )  # (GPU block, CPU block), copied before all else
    blocks_to_swap_in: list[tuple[int, int]] = field(default_factory=list)  # (CPU block, GPU block), copied after that
    head: Wait | None = None  # why the head of the queue waits
    budget_left: int = 0  # tokens that this step could still have computed
    thrown_away: int = 0  # stored tokens that its preemptions threw away


def append_tokens(batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
    """Append what a batch sampled and return the requests that end with it, in batch order, `finish_reason` set.

    tokens: request id -> its new tokens. A request that was aborted while the step ran is passed over.
    """
    finished = []
    for request in batch.tokens:
        new = tokens.get(request.id)
        if new is None or request.finish_reason is not None:
            continue
        request.output += new
        request.num_tokens += len(new)
        if new[-1] in request.stop_token_ids:
            request.finish_reason = "stop"
        elif request.num_tokens - len(request.prompt) >= request.max_tokens:
            request.finish_reason = "length"
        else:
            continue
        finished.append(request)
    return finished


class StaticBatcher:
    """The scheduler of a first server: take a batch, run it until its last member is done, take the next.

    max_num_seqs: the slots of a batch.
    `waiting` holds requests that have not run, first come first; `running` those of the batch that are not done.
    """

    def __init__(self, max_num_seqs: int = 16):
        self.max_num_seqs = positive("max_num_seqs", max_num_seqs)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._live: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        """Queue a request. DuplicateRequest while another with its id is waiting or running."""
        if request.id in self._live:
            raise DuplicateRequest(request.id)
        self._live[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: str, reason: str = "abort") -> Request | None:
        """Drop a request in whatever state it is and return it; None if no such request is live."""
        request = self._live.pop(request_id, None)
        if request is not None:
            (self.running if request in self.running else self.waiting).remove(request)
            request.finish_reason = reason
        return request

    @exercise
    def schedule(self) -> Batch:
        """Decide what the next step computes. Roughly 10 lines.

        1. Only when nothing is running: move requests from the front of `waiting` to `running` until all `max_num_seqs`
           slots are taken or nobody waits. List them in `batch.admitted`, in that order.
        2. Every running request computes all that it is behind by, `num_tokens - num_computed_tokens`: its whole prompt in
           its first step, one token in each later one. Write that number to `batch.tokens[request]` and advance
           `request.num_computed_tokens` by it.
        3. If anybody still waits, say why: `batch.head = self.why_wait()`.

        Returns the Batch; with nothing to run its `tokens` are empty.
        """
        batch = Batch()
        if not self.running:
            while self.waiting and len(self.running) < self.max_num_seqs:
                request = self.waiting.popleft()
                self.running.append(request)
                batch.admitted.append(request)
        for request in self.running:
            batch.tokens[request] = request.num_tokens - request.num_computed_tokens
            request.num_computed_tokens = request.num_tokens
        if self.waiting:
            batch.head = self.why_wait()
        return batch

    def why_wait(self) -> Wait:
        """Why the head of the queue waits while this batch runs."""
        n = len(self.running)
        return Wait("batch", n, 0, f"the batch is closed until its last member is done: {n} still running")

    def update(self, batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
        """Take the tokens of an executed batch and return the requests that finished. A freed slot stays empty."""
        finished = append_tokens(batch, tokens)
        for request in finished:
            self.running.remove(request)
            del self._live[request.id]
        return finished

    def explain(self, batch: Batch) -> dict[str, Wait]:
        """Why each waiting request waits, by id. In this queue all wait for the same thing."""
        return {request.id: batch.head for request in self.waiting} if batch.head else {}

    def steady_steps(self) -> int:
        """How many coming steps are sure to be alike if nobody arrives; 1 is always right. Engine.run jumps over them."""
        return fastforward.steps_to_an_end(self.running)


class CostRunner:
    """Executes a batch on the cost model: it takes time and makes tokens that have no content."""

    NO_CONTENT = [-1]  # one token; shared, so that a token costs no memory

    def __init__(self, cost: CostModel = A100_LLAMA3_8B):
        self.cost = cost

    def execute(self, batch: Batch) -> tuple[dict[str, list[int]], int]:
        """Returns (id -> one token, for each request that samples; modelled nanoseconds)."""
        kv_tokens = sum(map(attrgetter("num_computed_tokens"), batch.tokens))
        step_ns = self.cost.step_ns(sum(batch.tokens.values()), kv_tokens)
        return {request.id: self.NO_CONTENT for request in sampling(batch)}, step_ns

    def ahead(self, num_tokens: int, kv_tokens: Iterable[int]) -> Iterator[int]:
        """Nanoseconds of coming steps that compute `num_tokens` each, one for each number of tokens in the KV cache."""
        return (self.cost.step_ns(num_tokens, kv) for kv in kv_tokens)


class Engine:
    """The loop schedule -> execute -> update on a virtual clock of whole nanoseconds.

    scheduler: anything with add, abort, schedule, update, waiting and running: every lesson's from here on.
    runner: what executes a batch and says how long it took.
    requests: the workload; each joins the scheduler once the clock has reached its `arrival_ns`.
    """

    def __init__(self, scheduler, runner: Runner | None = None, requests: Iterable[Request] = ()):
        self.scheduler = scheduler
        self.runner = runner or CostRunner()
        self.arrivals = deque(sorted(map(fresh, requests), key=attrgetter("arrival_ns")))  # stable: ties keep their order
        self.clock_ns = 0
        self.report = Report()

    @exercise
    def step(self) -> Batch:
        """One turn of the loop. Roughly 12 lines.

        1. `self.arrive()` hands the scheduler everything that has arrived by now.
        2. Ask the scheduler for a batch.
        3. A batch without tokens takes no time: `self.idle(batch)`, and return it.
        4. `runner.execute(batch)` returns (tokens, nanoseconds). If it raises an Exception, `self.fail(batch, error)` ends
           the requests of this batch and nobody else's; return the batch.
        5. Move the clock by those nanoseconds, *then* give the scheduler its update: a token exists when its step has
           ended, not when it began.
        6. `self.report.record(self.clock_ns, batch, tokens, finished, scheduler)`, and return the batch.
        """
        self.arrive()
        batch = self.scheduler.schedule()
        if not batch.tokens:
            self.idle(batch)
            return batch
        try:
            tokens, step_ns = self.runner.execute(batch)
        except Exception as error:
            self.fail(batch, error)
            return batch
        self.clock_ns += step_ns
        finished = self.scheduler.update(batch, tokens)
        self.report.record(self.clock_ns, batch, tokens, finished, self.scheduler)
        return batch

    def run(self, max_steps: int = 100_000_000, watch: Callable[[], None] | None = None, fast: bool = False) -> Report:
        """Step until everything has ended; `report.end` is then `done`. `watch` is called every 1,000 steps.

        fast: jump over steps that are sure to be alike (kit.fastforward), with a runner that can price them ahead. The report
        is the same, to the last number.

        `stuck`: STUCK_AFTER steps in a row computed nothing (or a hundred times as many made no token), and no arrival is
        left to change that. `max`: max_steps were taken. `report.diagnosis` says who waits for what; all keep their places.
        """
        idle, steps, began = 0.0, 0, self.report.steps
        batch = Batch()
        fast = fast and fastforward.possible(self.runner, self.scheduler)
        while (alive := self.arrivals or self.scheduler.waiting or self.scheduler.running) and steps < max_steps:
            made = self.report.tokens_made
            batch = (fast and fastforward.jump(self, max_steps - steps - 1)) or self.step()
            before, steps = steps, self.report.steps - began
            if self.arrivals or self.report.tokens_made > made:
                idle = 0.0
            else:  # a long prompt may take hundreds of steps to its first token, so a step that computes counts little
                idle += 0.01 if batch.tokens else 1
            if idle >= STUCK_AFTER:
                return self.report.close("stuck", self.scheduler, self.arrivals, batch.head)
            if watch and steps // 1000 > before // 1000:
                watch()
        return self.report.close("max" if alive else "done", self.scheduler, self.arrivals, batch.head)

    def abort(self, request_id: str, reason: str = "abort") -> bool:
        """End a request in whatever state it is; False if the scheduler has no such request."""
        request = self.scheduler.abort(request_id, reason)
        if request is not None:
            self.report.end_request(self.clock_ns, request)
        return request is not None

    def arrive(self) -> None:
        """Hand over everything that has arrived; what the scheduler refuses is reported, and the loop goes on."""
        while self.arrivals and self.arrivals[0].arrival_ns <= self.clock_ns:
            request = self.arrivals.popleft()
            try:
                self.scheduler.add(request)
            except (RequestRefused, DuplicateRequest) as error:
                self.report.refuse(request, error)

    def idle(self, batch: Batch) -> None:
        """Nothing to compute: the clock jumps to the next arrival."""
        self.report.record_idle(batch)
        if self.arrivals and not batch.preempted:
            self.clock_ns = max(self.clock_ns, self.arrivals[0].arrival_ns)

    def fail(self, batch: Batch, error: Exception) -> None:
        """The runner broke in mid-step: its requests end as `error`, their memory comes back, the engine lives on."""
        self.report.errors.append(f"step {self.report.num_steps}: {type(error).__name__}: {error}")
        if batch.swapped:  # nobody knows whether their KV had been copied (s12)
            self.scheduler.drop_copies(batch)
        self.report.record_idle(batch)
        for request in list(batch.tokens):
            self.abort(request.id, "error")


@dataclass(frozen=True, slots=True)
class Latency:
    """One request as its user felt it, in nanoseconds. `tpot_ns` (time per output token after the first) is a mean."""

    ttft_ns: int
    longest_gap_ns: int
    tpot_ns: float
    total_ns: int


@exercise
def latency(stamps: Sequence[int]) -> Latency:
    """What one request's time stamps say. Roughly 8 lines.

    stamps: nanoseconds: its arrival, then the moment each of its tokens appeared; at least two.

    TTFT is the wait for the first token. A gap is the time between two neighbouring tokens; `longest_gap_ns` is the
    largest (0 with a single token), `tpot_ns` the mean of all gaps (0.0 with a single token). `total_ns` runs from arrival
    to the last token.
    """
    arrival, *tokens = stamps
    gaps = [later - earlier for earlier, later in zip(tokens, tokens[1:])]
    return Latency(
        ttft_ns=tokens[0] - arrival,
        longest_gap_ns=max(gaps, default=0),
        tpot_ns=sum(gaps) / len(gaps) if gaps else 0.0,
        total_ns=tokens[-1] - arrival,
    )


@exercise
def slot_utilisation(batches: Sequence[Sequence[int]]) -> float:
    """The share of slot-steps that made a token. Roughly 3 lines.

    batches: one list per batch, with one entry per slot: the tokens that this slot made, 0 for a slot left empty.

    A batch lasts as long as its longest member, and all its slots are held that long. Returns tokens made divided by
    slot-steps held, over all batches together; 0.0 if nothing was held, as in [] and [[]].
    """
    held = sum(len(batch) * max(batch, default=0) for batch in batches)
    return sum(map(sum, batches)) / held if held else 0.0


def main(argv: list[str] | None = None) -> int:
    from kit import experiments

    return experiments.static(argv, StaticBatcher, Engine, latency, slot_utilisation)


if __name__ == "__main__":
    raise SystemExit(main())

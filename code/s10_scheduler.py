"""s10 adds the two limits that a real engine lives under: tokens per step, and blocks of KV memory.

The shape of the file: policies (who is next, who is evicted); `Scheduler` with its two passes; `ThrashMeter`; `main`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from kit import fastforward, incidents
from kit.config import Config, positive
from kit.errors import DuplicateRequest, refuse_beyond
from kit.exercise import exercise
from kit.request import Request, total_tokens
from kit.waiting import WaitingQueue
from s03_step_cost import A100_LLAMA3_8B, CostModel
from s05_paged_blocks import BlockPool, blocks_needed
from s08_static_batching import Batch, Engine, Wait, append_tokens


class FCFS:
    """First come, first served. A victim came before everyone who waits, so its key takes it to the front."""

    def key(self, request: Request) -> tuple[float, ...]:
        """Requests are served in increasing order of this; ties go by the order of `add`."""
        return (request.order,)

    def victim(self, running: list[Request]) -> Request:
        """Whom to evict: the last admitted, whose user has read least of the answer."""
        return running[-1]


class ShortestFirst(FCFS):
    """The shortest prompt first, then the earliest arrival. A preemption changes neither."""

    def key(self, request: Request) -> tuple[float, ...]:
        return len(request.prompt), request.arrival_ns


class Priority(FCFS):
    """The smallest `priority` first, then the earliest arrival; the victim is the other end of the same order."""

    def key(self, request: Request) -> tuple[float, ...]:
        return request.priority, request.arrival_ns

    def victim(self, running: list[Request]) -> Request:
        return max(running, key=lambda request: (self.key(request), request.order))


class AgedPriority(Priority):
    """Extension. Waiting improves a priority, by `points_per_second`: nobody starves behind a stream of urgent ones."""

    def __init__(self, points_per_second: float):
        self.points_per_second = points_per_second

    @exercise
    def key(self, request: Request) -> tuple[float, ...]:
        """`priority` minus points_per_second * seconds waited, as a key that need not change. Roughly 2 lines.

        All who wait age at one pace: leave out the present time, count the arrival. Returns (aged priority, `arrival_ns`).
        """
        raise NotImplementedError


class Scheduler:
    """Two queues, a token budget and a KV pool: between steps each live request is in exactly one of the two.

    config: the limits (kit.config.Config). policy: in place of the one that `config.policy` names.
    Later lessons override its seams: chunk_size, needs, admit_pass, pick_victim, _park, _restore, release.
    """

    def __init__(self, config: Config, policy: FCFS | None = None):
        self.config = config
        self.policy = policy or {"fcfs": FCFS, "shortest": ShortestFirst, "priority": Priority}[config.policy]()
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self.waiting = WaitingQueue(self.policy.key)  # head, pop, push, remove, in the policy's order
        self.running: list[Request] = []  # in the order of admission
        self.batch = Batch()  # the step being decided
        self.most_at_once = config.max_num_batched_tokens  # tokens that one request may ever have to compute in one step
        self.ttft_target_ms: float | None = None  # extension: refuse at arrival what would wait longer
        self.cost: CostModel = A100_LLAMA3_8B  # what that prediction is priced with
        self.meter: ThrashMeter | None = None  # extension: admit nobody new while the pool thrashes
        self._live: dict[str, Request] = {}
        self._added = 0

    @exercise
    def add(self, request: Request) -> None:
        """Take a request in, or refuse at once what could never finish. Roughly 15 lines.

        `refuse_beyond(request.id, reason, needed, available)` raises if needed is larger. A refused request is not kept.
        1. DuplicateRequest(request.id) if a live request has its id (`self._live`: id -> request).
        2. With a `config.max_model_len`: "rejected_len" if the prompt and one more token are beyond it; then cut
           `max_tokens` down to the room behind the prompt.
        3. Unless `config.reject_unservable` is off, for its `max_kv_slots`, the most tokens it can come to store:
           "rejected_kv" if they take more blocks than `config.usable_blocks` (the pool above the watermark);
           "rejected_budget" if they are beyond `self.most_at_once`: a preempted request returns in one piece.
        4. Number it in the order of add: `request.order` is 1, 2, …, counted by `self._added`. Extension: "rejected_slo" if
           `predict_ttft_ms(request)` is beyond a `ttft_target_ms` (both rounded). Then make it live, and queue it.
        """
        raise NotImplementedError

    def schedule(self) -> Batch:
        """Decide what the next step computes: first those who run, then those who wait."""
        self.batch = Batch()
        left = self.decode_pass(self.config.max_num_batched_tokens)
        self.batch.budget_left = self.admit_pass(left)
        return self.batch

    @exercise
    def decode_pass(self, budget: int, requests: Sequence[Request] | None = None) -> int:
        """Give each running request its next token, evicting *while* blocks are short. Returns the budget left.

        For each of `requests`, or of a snapshot of `running`, which shrinks while you walk. Roughly 12 lines. (Here one
        eviction frees enough, for each needs one token; s11's chunks may need more, and s11 names a part of `running`.)
        1. Pass over one that has been evicted meanwhile: it is in `self.batch.preempted`.
        2. `n = self.chunk_size(request, budget)`; if n is 0 the budget is spent: stop.
        3. While it lacks more blocks (`pool.missing(request, n)`) than `pool.num_free`, and was not evicted itself: preempt
           whom `self.pick_victim()` names. The budget grows by what `preempt` gives back.
        4. Unless it was evicted itself: `self.compute(request, n)`, which spends n tokens of the budget.
        """
        raise NotImplementedError

    @exercise
    def pick_victim(self) -> Request:
        """Whom to evict when a block is missing: ask `self.policy` about `running`. Roughly 1 line."""
        raise NotImplementedError

    @exercise
    def preempt(self, request: Request) -> int:
        """Evict a running request. Returns the tokens that it gives back to this step's budget. Roughly 8 lines.

        1. Take it out of `self.batch.tokens`, if it is there already, and set `num_computed_tokens` back by that number:
           tokens that will not be computed were never stored, and go back to the budget.
        2. Out of `running`; `self._park(request)`; count it in `num_preemptions`; list it in `self.batch.preempted`.
        3. Push it to `waiting`: its key decides the place. Its output stays, for its user has read those tokens.
        """
        raise NotImplementedError

    @exercise
    def admit_pass(self, budget: int) -> int:
        """Let requests in from the head of the queue until the head has to wait. Returns the budget left.

        While anybody waits, look at the head of `waiting`. Roughly 12 lines.
        1. `wait = self.why_wait(head, budget)`. With a reason: `self.batch.head = wait`, and stop; nobody overtakes.
        2. Pop it, append it to `running`, list it in `batch.resumed` if it was ever preempted, else in `batch.admitted`.
        3. `self._restore(request)`; then `self.compute` its `chunk_size` as in the decode pass, and pay for it.
        """
        raise NotImplementedError

    @exercise
    def why_wait(self, request: Request, budget: int) -> Wait | None:
        """Why `request` can't join with `budget` tokens left, or None if it can. Roughly 12 lines.

        `tokens, blocks = self.needs(request, budget)` is what it asks for. Returns the first of these rules that holds,
        needed > available, as Wait(rule, needed, available, a short text).
        "eviction"  evictions in this step (`batch.preempted`) > 0: a step that evicts admits nobody;
        "seats"     running requests with this one > `max_num_seqs`;
        "budget"    tokens > budget: they can't be split;
        "blocks"    blocks > free blocks less `config.watermark_blocks` (perhaps below 0);
        "thrash"    extension: running requests, if `meter.thrashing` and this one was never preempted, else 0 > 0.
        """
        raise NotImplementedError

    def explain(self, batch: Batch) -> dict[str, Wait]:
        """Why each waiting request waits, by id and in the queue's order. Ask between `schedule` and `update`."""
        head = self.waiting.head().id if self.waiting else None
        behind = Wait("behind", 1, 0, f"would fit, but waits behind {head}")
        return {other.id: self.why_wait(other, batch.budget_left) or behind for other in self.waiting}

    def needs(self, request: Request, budget: int) -> tuple[int, int]:
        """What a request must find to join: tokens of the budget, and free blocks. Here room for all that it is behind by."""
        behind = request.num_tokens - request.num_computed_tokens
        return behind, self.pool.missing(request, behind)

    def chunk_size(self, request: Request, budget: int) -> int:
        """Tokens that a request computes now: all that it is behind by, or none."""
        behind = request.num_tokens - request.num_computed_tokens
        return behind if behind <= budget else 0

    def _park(self, request: Request) -> None:
        """What eviction does to the KV: recompute throws it away. s12 can move it to the CPU instead."""
        request.recomputed_tokens += request.num_computed_tokens
        self.batch.thrown_away += request.num_computed_tokens
        self.pool.release(request)

    def _restore(self, request: Request) -> None:
        """What admission brings back for a parked request: with recompute nothing."""

    def compute(self, request: Request, n: int) -> int:
        """Put a request's next n tokens into the step, with the blocks that will hold their KV. Returns n."""
        self.pool.grow(request, n)
        request.num_computed_tokens += n
        self.batch.tokens[request] = n
        return n

    def update(self, batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
        """Take the tokens of an executed batch. Returns the requests that ended with it; their blocks are free."""
        finished = append_tokens(batch, tokens)
        for request in finished:
            self.abort(request.id, request.finish_reason)
        if self.meter is not None:
            self.meter.observe(batch.thrown_away, sum(batch.tokens.values()))
        return finished

    def abort(self, request_id: str, reason: str | None = "abort") -> Request | None:
        """End a request in whatever state it is and return it; None if no such request is live."""
        request = self._live.pop(request_id, None)
        if request is not None:
            self.release(request)
            request.finish_reason = reason
        return request

    def release(self, request: Request) -> None:
        """Take a request out of the queue that it is in, and all its blocks back."""
        (self.running if request in self.running else self.waiting).remove(request)
        self.pool.release(request)

    def steady_steps(self) -> int:
        """How many coming steps are sure to be alike if nobody arrives; 1 is always right."""
        return fastforward.steady_steps(self)

    @exercise
    def predict_ttft_ms(self, request: Request) -> float:
        """Extension. When would a newcomer see its first token? A guess in milliseconds. Roughly 5 lines.

        Waiting requests whose `policy.key` is not larger go first. Their tokens and its own take ceil(tokens / budget)
        steps of `cost.step_ns(budget, 0)`. Memory, seats and decodes are left out, so it is low on a full machine.
        """
        raise NotImplementedError


class ThrashMeter:
    """Extension. Tells an engine that works from one that repeats itself: tokens thrown away / computed for the first time.

    `thrashing` turns on above `high` and off only at `low`: a single threshold would flicker, and admissions with it.
    """

    def __init__(self, window: int = 20, high: float = 0.20, low: float = 0.10):
        self.high, self.low, self.rec_new, self.thrashing = high, low, 0.0, False
        self.steps: deque[tuple[int, int]] = deque(maxlen=positive("window", window))

    @exercise
    def observe(self, thrown_away: int, computed: int) -> bool:
        """Take in one step and return `thrashing`. Roughly 6 lines.

        `rec_new`: tokens thrown away in the last `window` steps / all others computed in them (at least 1). Set `thrashing`
        by the two thresholds; between them it stays what it was.
        """
        raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    return incidents.main(argv, Scheduler, Engine)


if __name__ == "__main__":
    raise SystemExit(main())

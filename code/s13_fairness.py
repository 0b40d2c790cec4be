"""s13 adds fairness: who may take whose seat, how long anybody can be made to wait, and whose share it is.

The shape of the file: `AgingPriority` and `FairShare`, two answers to who is next; `FairScheduler`, s12's with a wider gate and an
admission that may pass over a blocked head or take a seat; `goodput`, which counts answers in time; `main`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from kit.config import Config
from kit.exercise import exercise
from kit.report import Row
from kit.request import Request
from kit.waiting import WaitingQueue
from s05_paged_blocks import blocks_needed
from s08_static_batching import Batch, Engine
from s10_scheduler import FCFS, Priority
from s11_chunked_prefill import ChunkedScheduler
from s12_preemption import SwappingScheduler, VictimKey


class AgingPriority(Priority):
    """Waiting improves a priority by `rate` points for each unit of `arrival_ns`, exactly: ties stay ties."""

    def __init__(self, rate: float):
        self.rate = Fraction(str(rate))

    @exercise
    def key(self, request: Request) -> tuple[float, ...]:
        """The place in the queue, as a key that need not change while time passes. Roughly 2 lines.

        At time t a request has the priority p - rate * (t - arrival). Of two who wait, the order never depends on t: leave it
        out. Multiply by the rate's denominator, so that whole numbers stay whole: returns (p * rate.denominator +
        rate.numerator * arrival_ns, arrival_ns).
        """
        raise NotImplementedError


@exercise
def aging_bound(priority: float, most_urgent: float, rate: float) -> float:
    """How long after its arrival a request can still be overtaken by newcomers, in units of 1 / rate. Roughly 2 lines.

    priority: its own. most_urgent: the smallest that anybody has. rate: points by which waiting improves a priority; 0 means no
    aging: returns infinity, or 0.0 if nobody is more urgent.
    After that time its aged priority is below that of any newcomer; it then waits for those before it only.
    """
    raise NotImplementedError


class FairShare(FCFS):
    """Tenants are served in turn by what they have had so far, in tokens (VTC: Sheng et al., OSDI 2024).

    served: tenant -> tokens computed for it, an output token counting `output_weight` times. Each token counts once, however
    often an eviction makes the engine compute it.
    """

    def __init__(self, output_weight: int = 2):
        self.output_weight = output_weight
        self.served: dict[str, int] = {}
        self._furthest: dict[Request, int] = {}  # tokens that its tenant has been charged for

    @exercise
    def charge(self, request: Request) -> None:
        """Count what a request has computed since it was last charged. Roughly 6 lines.

        Its tokens `_furthest.get(request, 0)` up to `num_computed_tokens` are new; if there are none, change nothing. A new token of
        the prompt counts 1, one behind it (an output) `output_weight`. Add them to its tenant's `served`, and move `_furthest` on.
        """
        raise NotImplementedError

    @exercise
    def arrive(self, tenant: str, waiting: Iterable[str]) -> None:
        """A tenant without a waiting request gets one. Roughly 4 lines.

        waiting: the tenants that have requests in the queue already.
        Idle time earns no credit: lift its `served` to the smallest of theirs, if it is below that; with nobody waiting it keeps
        what it has (0 for a new one).
        """
        raise NotImplementedError

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self._furthest.pop(request, None)


class FairQueue:
    """A queue for each tenant; the head is that of the tenant served least. The methods are those of kit.waiting.WaitingQueue."""

    def __init__(self, policy: FairShare, scheduler: SwappingScheduler):
        self.policy, self.scheduler = policy, scheduler
        self.queues: dict[str, WaitingQueue] = {}

    def push(self, request: Request) -> None:
        if not self.queues.get(request.tenant):
            self.policy.arrive(request.tenant, [tenant for tenant, queue in self.queues.items() if queue])
        self.queues.setdefault(request.tenant, WaitingQueue(self.scheduler.place)).push(request)

    def head(self) -> Request:
        return min((queue.head() for queue in self.queues.values() if queue), key=self._place)

    def pop(self) -> Request:
        request = self.head()
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        self.queues[request.tenant].remove(request)

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def __contains__(self, request: Request) -> bool:
        return request.tenant in self.queues and request in self.queues[request.tenant]

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted((request for queue in self.queues.values() for request in queue), key=self._place))

    def _place(self, request: Request) -> tuple[float, ...]:
        """Swapped requests first (their memory is promised), then the tenant with the least service, then order of arrival."""
        swapped_first, *order = self.scheduler.place(request)
        return (swapped_first, self.policy.served.get(request.tenant, 0), *order)


class FairScheduler(SwappingScheduler):
    """Admission with every choice that an operator has: order, gate, overtaking, and taking a seat."""

    def __init__(self, config: Config, policy: FCFS | None = None, victim_key: VictimKey | None = None):
        if policy is None and config.aging_per_step:
            policy = AgingPriority(config.aging_per_step)
        super().__init__(config, policy, victim_key)
        if isinstance(self.policy, FairShare):
            self.waiting: FairQueue | WaitingQueue = FairQueue(self.policy, self)

    def place(self, request: Request) -> tuple[float, ...]:
        """As in s12; but where urgent requests take seats, a swapped one goes before others of its own priority only."""
        swapped_first, *order = super().place(request)
        return (order[0], swapped_first, *order) if self.config.preempt_for_priority else (swapped_first, *order)

    @exercise
    def gate(self, request: Request, chunk: int) -> int:
        """Blocks that must be free, above the watermark, for a request to join. Roughly 5 lines.

        `admission` "chunk" and "full_prompt": as in s11, `ChunkedScheduler.gate(self, request, chunk)`. "to_completion": the blocks
        that it lacks for its `max_kv_slots`, the most tokens it can come to store, and besides them `self.promised()`, what those who
        run may still take. Who joins so is never evicted for memory.
        """
        raise NotImplementedError

    def promised(self) -> int:
        """Blocks that running requests don't have yet, and may come to need."""
        size = self.config.block_size
        return sum(blocks_needed(other.max_kv_slots, size) - len(other.blocks) for other in self.running)

    def in_turn(self) -> Iterator[Request]:
        """Who may join, in order: one head after another or, with `skip_blocked`, everybody who waits."""
        if self.config.skip_blocked:
            yield from tuple(self.waiting)
        else:
            while self.waiting:
                yield self.waiting.head()

    @exercise
    def admit_pass(self, budget: int) -> int:
        """Let requests in, in turn. Returns the budget left. Roughly 14 lines.

        For each request of `self.in_turn()`, `wait = self.why_wait(request, budget)`:
        1. Without a reason `self.join` it, and go on with the next.
        2. With the reason "seats" and `config.preempt_for_priority`, ask `self.seat_for(request, budget)`. If that names somebody,
           preempt them, which gives tokens back to the budget, `join` the request, and stop: nobody else joins.
        3. The first reason of the pass that holds is `self.batch.head`.
        4. Pass on to the next only if `config.skip_blocked`, the reason is "blocks", and the request is not swapped out (in
           `cpu_tables`): no other reason lets anybody else in. Otherwise stop.
        """
        raise NotImplementedError

    @exercise
    def seat_for(self, request: Request, budget: int) -> Request | None:
        """Whose seat a request may take, or None. Roughly 6 lines.

        1. The candidate is the running request with the largest (priority, arrival_ns, order).
        2. None unless its `priority` is *strictly* larger than the request's: equals would take the seat back and forth.
        3. Its tokens of this step (`batch.tokens`, perhaps none) would come back to the budget, and its blocks to the pool. None if
           the request could not join even so: `self.fits_without(victim, request, budget with those tokens)`.
        """
        raise NotImplementedError

    def fits_without(self, victim: Request, request: Request, budget: int) -> bool:
        """Whether a request finds tokens and blocks once the victim has given back its own."""
        tokens, blocks = self.needs(request, budget)
        if self.config.admission == "to_completion":
            blocks -= blocks_needed(victim.max_kv_slots, self.config.block_size) - len(victim.blocks)
        free = self.pool.num_free + len(victim.blocks) - self.config.watermark_blocks
        return tokens <= budget and blocks <= free

    def update(self, batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
        """As before; a fair share is charged for what the step computed."""
        if isinstance(self.policy, FairShare):
            for request in batch.tokens:
                self.policy.charge(request)
        return super().update(batch, tokens)

    def steady_steps(self) -> int:
        """As before, but 1 where the queue can move while everybody decodes."""
        moves = self.waiting and (self.config.skip_blocked or self.config.preempt_for_priority)
        return 1 if moves or isinstance(self.policy, FairShare) else super().steady_steps()

    def release(self, request: Request) -> None:
        super().release(request)
        if isinstance(self.policy, FairShare):
            self.policy.forget(request)


@exercise
def goodput(rows: Iterable[Row], ttft_ms: float, tpot_ms: float) -> int:
    """How many requests were served in time: they ended well, and met both targets. Roughly 8 lines.

    A row has `finish_reason` ("stop" and "length" are well), `arrival_ns`, `first_token_ns` (None if there was none), `finish_ns` and
    `output_tokens`. TTFT is from arrival to first token; TPOT the mean time of each token behind the first, 0 with one token.
    Exactly on the target is in time.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    from kit import fairness

    return fairness.main(argv, FairScheduler, Engine)


if __name__ == "__main__":
    raise SystemExit(main())

"""s13 adds fairness: who may take whose seat, how long anybody can be made to wait, and whose share it is.

The shape of the file: `AgingPriority` and `FairShare`, two answers to who is next; `TokenRatio`, a guess at how long answers get;
`FairScheduler`, s12's with a wider gate and an admission that may pass over a blocked head or take a seat; `goodput`; `main`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from kit.config import Config, above_zero
from kit.errors import BadConfig
from kit.exercise import exercise
from kit.report import Row
from kit.request import Request, total_tokens
from kit.waiting import TenantQueue
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
        """Extension. The place in the queue, as a key that need not change while time passes. Roughly 2 lines.

        At time t a request has the priority p - rate * (t - arrival). Of two who wait, the order never depends on t: leave it
        out. Multiply by the rate's denominator, so that whole numbers stay whole: returns (p * rate.denominator +
        rate.numerator * arrival_ns, arrival_ns).
        """
        raise NotImplementedError


@exercise
def aging_bound(priority: float, most_urgent: float, rate: float) -> float:
    """Extension. How long after its arrival a request can still be overtaken, in the time unit of `rate`. Roughly 2 lines.

    priority: its own. most_urgent: the smallest that anybody has. rate: points by which waiting improves a priority in one unit
    of time; 0 means no aging: returns infinity, or 0.0 if nobody is more urgent.
    Whoever arrives later than that stands behind it; from then on it waits for those before it only.
    """
    raise NotImplementedError


class FairShare(FCFS):
    """Tenants are served in turn by what they have had so far, in tokens (VTC: Sheng et al., OSDI 2024).

    served: tenant -> its counter: tokens computed for it, an output token counting `output_weight` times, and what `arrive`
    lifted it by. Each token counts once, however often an eviction makes the engine compute it.
    left_last: the tenant whose request left the queue last, if any has.
    """

    def __init__(self, output_weight: int = 2):
        self.output_weight = output_weight
        self.served: dict[str, int] = {}
        self.left_last: str | None = None
        self._furthest: dict[Request, int] = {}  # tokens that its tenant has been charged for

    @exercise
    def charge(self, request: Request) -> None:
        """Count what a request has been given since it was last charged. Roughly 6 lines.

        Its tokens `_furthest.get(request, 0)` up to `num_computed_tokens` are new; if there are none, change nothing: it computes
        again what an eviction threw away. A new token of the prompt counts 1, one behind the prompt (an output) `output_weight`.
        Add them to its tenant's `served`, and move `_furthest` on.
        """
        raise NotImplementedError

    @exercise
    def arrive(self, tenant: str, waiting: Iterable[str]) -> None:
        """A tenant without a waiting request gets one. Roughly 5 lines.

        waiting: the tenants that have requests in the queue already. A tenant without a counter has had 0.
        Idle time earns no credit: if its counter (0 for a new tenant) is below the smallest of theirs, lift it to that. With nobody
        waiting, lift it to the counter of `left_last` in the same way, if there is one. A counter never falls.
        """
        raise NotImplementedError

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self._furthest.pop(request, None)


class TokenRatio:
    """Extension. The share of its remaining max_tokens that a request is expected to use: SGLang's `new_token_ratio`.

    1 reserves to completion, 0 reserves nothing. Too low, and an eviction says so; too high, and nothing does: so it decays.
    (SGLang *sets* its ratio after an eviction, which may lower it. Ours never falls by one.)
    """

    def __init__(self, start: float = 0.7, least: float = 0.1, decay: float = 0.001, ahead: int = 20):
        self.ratio, self.least, self.decay, self.ahead = start, least, decay, ahead

    @exercise
    def observe(self, running: Sequence[Request], evicted: bool) -> float:
        """Take in one step and return the `ratio` for the next. Roughly 6 lines.

        running: those who run after it. evicted: whether it evicted anybody for memory.
        Without an eviction it falls by `decay`, to no less than `least`. After one, unless nobody runs, it rises to the share of their answers that
        those who run have made and will have made `ahead` tokens later, (their num_output_tokens + `ahead` for each of them) /
        (their max_tokens), summed above and below the line; never to more than 1, and it never falls by that.
        """
        raise NotImplementedError


class FairScheduler(SwappingScheduler):
    """Admission with every choice that an operator has: order, gate, overtaking, and taking a seat."""

    lesson = "s13"

    def __init__(self, config: Config, policy: FCFS | None = None, victim_key: VictimKey | None = None):
        if policy is None and config.policy == "priority" and config.aging_per_step:
            policy = AgingPriority(config.aging_per_step)
        super().__init__(config, policy, victim_key)
        self.estimate: TokenRatio | None = None  # extension: `to_completion` reserves no more than it expects
        if isinstance(self.policy, FairShare):
            if config.preempt_for_priority:
                raise BadConfig(
                    "preempt_for_priority takes seats by priority, a fair share gives them by tenant: choose one"
                )
            self.waiting = TenantQueue(self.place, self.policy)

    def place(self, request: Request) -> tuple[float, ...]:
        """As in s12; but where a queue by priority takes seats, a swapped one goes before others of its own priority only."""
        swapped_first, *order = super().place(request)
        by_priority = self.config.preempt_for_priority and isinstance(self.policy, Priority)
        return (order[0], swapped_first, *order) if by_priority else (swapped_first, *order)

    @exercise
    def gate(self, request: Request, chunk: int) -> int:
        """Blocks that must be free, above the watermark, for a request to join. Roughly 5 lines.

        `config.admission` "chunk" and "full_prompt": as in s11, `ChunkedScheduler.gate(self, request, chunk)`. "to_completion": the
        blocks that it lacks to store `self.slots(request)` tokens, and besides them, for each request that runs, what is promised to
        it: `self.promised(other)`. Who joins so is never evicted for memory.
        """
        raise NotImplementedError

    def slots(self, request: Request) -> int:
        """The tokens that a request may come to store; with an `estimate`, those that it is expected to."""
        if self.estimate is None:
            return request.max_kv_slots
        return request.num_tokens + math.ceil(self.estimate.ratio * (request.max_kv_slots - request.num_tokens))

    def promised(self, request: Request) -> int:
        """Blocks that a request which runs, or is about to, doesn't have yet and may come to need."""
        return blocks_needed(self.slots(request), self.config.block_size) - len(request.blocks)

    def in_turn(self) -> Iterator[Request]:
        """Who may join, in order: one head after another or, with `skip_blocked`, everybody who waits."""
        if self.config.skip_blocked:
            yield from self.waiting
        else:
            while self.waiting:
                yield self.waiting.head()

    @exercise
    def admit_pass(self, budget: int) -> int:
        """Let requests in, in turn. Returns the budget left. Roughly 16 lines.

        For each request of `self.in_turn()`, `wait = self.why_wait(request, budget)`:
        1. Without a reason `self.join` it, and go on with the next.
        2. With the reason "seats" and `config.preempt_for_priority`, ask `self.seat_for(request, budget)`. If that names somebody,
           preempt them, which gives tokens back to the budget, and `join` the request. Nobody else joins: stop, with the reason
           of the victim, who waits now (`why_wait` says "eviction"), unless step 3 has noted one before.
        3. The first reason of the pass that holds is `self.batch.head`.
        4. Pass on to the next only if `config.skip_blocked`, the reason is "blocks", and the request is not swapped out (in
           `cpu_tables`). Otherwise stop: seats are short for everybody, and who lacks tokens of this step is served in the next.
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
            blocks -= self.promised(victim)
        free = self.pool.num_free + len(victim.blocks) - self.config.watermark_blocks
        return tokens <= budget and blocks <= free

    def compute(self, request: Request, n: int) -> int:
        """A fair share is charged at once, so that the seats of one step go round the tenants too."""
        super().compute(request, n)
        if isinstance(self.policy, FairShare):
            self.policy.charge(request)
        return n

    def update(self, batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
        """As before; an estimate learns from the step. A preemption for a seat (somebody joined in its step) says nothing."""
        finished = super().update(batch, tokens)
        if self.estimate is not None:
            joined = batch.admitted or batch.resumed or batch.swapped_in
            self.estimate.observe(self.running, bool(batch.preempted) and not joined)
        return finished

    def steady_steps(self) -> int:
        """As before, but 1 where the queue can move, or something is counted, while everybody decodes."""
        moves = self.waiting and (self.config.skip_blocked or self.config.preempt_for_priority)
        counts = isinstance(self.policy, FairShare) or self.estimate is not None
        return 1 if moves or counts else super().steady_steps()

    def release(self, request: Request) -> None:
        super().release(request)
        if isinstance(self.policy, FairShare):
            self.policy.forget(request)

    def predict_ttft_ms(self, request: Request) -> float:
        """s10's guess, mended: full steps until its tokens are computed, and until enough have left, whichever is later.

        With s seats and answers of n tokens, s / n seats come free in a step (Little's law); max_tokens stands for n.
        """
        budget, seats, running = self.config.max_num_batched_tokens, self.config.max_num_seqs, self.running
        unread = sum(max(other.num_tokens - other.num_computed_tokens - 1, 0) for other in running)
        before, waiting = self.tokens_before(request), total_tokens(self.waiting)
        steps = (unread + before + request.num_tokens) / max(budget - len(running), 1)
        to_leave = len(running) + 1 - seats + (len(self.waiting) * before / waiting if waiting else 0)
        if to_leave > 0 and running:
            steps = max(steps, to_leave / seats * sum(other.max_tokens for other in running) / len(running))
        return math.ceil(steps) * self.cost.step_ns(budget, sum(other.num_computed_tokens for other in running)) / 1e6

    @exercise
    def tokens_before(self, request: Request) -> int:
        """Extension. Tokens of those in `waiting` who will be served before a newcomer. Roughly 10 lines.

        In a queue: what everybody knows (`num_tokens`) whose `self.place` is not larger than the newcomer's.
        Under a FairShare the flood of another tenant is not ahead: it is served only until its counter has passed the newcomer's. The
        newcomer is through when its own tenant's counter has reached `goal`: the counter now, and what its waiting requests and the
        newcomer itself know. So of each other tenant, the smaller of what its waiting requests know and `goal` less its counter (at
        least 0) is ahead; of its own tenant all that waits is. A counter that is missing is 0.
        """
        raise NotImplementedError


@exercise
def goodput(rows: Iterable[Row], ttft_ms: float, tpot_ms: float) -> int:
    """How many requests were served in time: they ended well, and met both targets. Roughly 9 lines.

    `above_zero(name, target)` refuses a target of 0 ms or less: nobody could meet it.
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

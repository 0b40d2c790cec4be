"""s14 is the whole scheduler again, from one rule: what is computed chases what is known. It takes vLLM's decisions.

The shape of the file: `SchedulerOutput`, what a worker is told; `UnifiedScheduler` with its two passes, each rule by the name that
the lesson gives it (R0 to R9); `main`. Observed on vLLM 0.33.0 (v1, one GPU, no drafts); tests/data/vllm has its decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kit.config import Config
from kit.errors import DuplicateRequest, refuse_beyond
from kit.exercise import exercise
from kit.request import MOST_TOKENS, Request
from kit.waiting import WaitingQueue
from s05_paged_blocks import blocks_needed
from s07_prefix_cache import PrefixPool, hash_chain
from s08_static_batching import Batch, Engine, Wait, append_tokens


class NewRequest(NamedTuple):
    """All that a worker must know about a request it has never seen. num_computed_tokens: before this step."""

    id: str
    prompt: Sequence[int]
    blocks: list[int]
    num_computed_tokens: int


class KnownRequest(NamedTuple):
    """What has changed about a request that the worker knows. resumed: `blocks` is its whole new table, not an addition."""

    id: str
    resumed: bool
    blocks: list[int]
    num_computed_tokens: int


@dataclass(slots=True, eq=False)
class SchedulerOutput(Batch):
    """A Batch, and the message to the worker that goes with it: a few numbers a request, whatever its length."""

    new: list[NewRequest] = field(default_factory=list)
    known: list[KnownRequest] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)  # ended since the last message: the worker may forget them
    hits: dict[Request, int] = field(default_factory=dict)  # admitted or resumed -> tokens found in the cache


class UnifiedScheduler:
    """No prefill, no decode, no special case for a return: each step moves requests forward by as much as there is room for.

    config: of its options, `prefix_caching` and what s10 and s11 have (not `prefill_first`).
    safe: name a block only when its KV has been computed (see "The bug hunt"). vLLM names it when it is handed out.
    """

    def __init__(self, config: Config, safe: bool = False):
        self.config, self.safe = config, safe
        self.pool = PrefixPool(config.num_blocks, config.block_size)
        self.by_priority = config.policy == "priority"
        self.watermark_blocks = int(config.watermark * (config.num_blocks + 1))  # vLLM's pool counts its null block too
        self.waiting = WaitingQueue(self.place)
        self.running: list[Request] = []  # in the order of admission; who resumes is appended
        self.batch = SchedulerOutput()  # the step being decided
        self.names: dict[Request, list[bytes]] = {}  # the hash chain of each live request, as far as it was needed
        self._live: dict[str, Request] = {}
        self._ended: list[str] = []
        self._added = 0

    def place(self, request: Request) -> tuple[float, ...]:
        """R3. The queue's order; a victim goes back to the place it came from, which under FCFS is the front."""
        return (request.priority, request.arrival_ns) if self.by_priority else (request.order,)

    def add(self, request: Request) -> None:
        """Take a request in. RequestRefused for one that can never run, DuplicateRequest while its id is live."""
        config = self.config
        if request.id in self._live:
            raise DuplicateRequest(request.id)
        if config.max_model_len is not None:
            refuse_beyond(request.id, "rejected_len", len(request.prompt) + 1, config.max_model_len)
            request.max_tokens = min(request.max_tokens, config.max_model_len - len(request.prompt))
        if config.reject_unservable:
            slots = request.max_kv_slots
            most = MOST_TOKENS if config.chunked_prefill else config.max_num_batched_tokens
            refuse_beyond(request.id, "rejected_kv", blocks_needed(slots, config.block_size), config.num_blocks)
            refuse_beyond(request.id, "rejected_budget", slots, most)
        self._added = request.order = self._added + 1
        self._live[request.id] = request
        self.waiting.push(request)

    def schedule(self) -> SchedulerOutput:
        """Decide what the next step computes: those who run, in order; then, if nobody was evicted, those who wait."""
        self.batch = SchedulerOutput(finished=self._ended)
        self._ended = []
        budget = self.running_pass(self.config.max_num_batched_tokens)
        self.batch.budget_left = self.admission_pass(budget)
        return self.batch

    @exercise
    def step_size(self, request: Request, computed: int, budget: int) -> int:
        """R0, R1, R4b-d. How many tokens a request computes in this step, if `computed` of them are there. Roughly 6 lines.

        budget: tokens left in the step.
        1. It is behind by `num_tokens - computed`.
        2. `config.long_prefill_token_threshold`, if it is above 0 and another request runs or waits, caps that.
        3. The budget caps it too; but without `config.chunked_prefill` what is beyond the budget is 0, not cut.
        """
        raise NotImplementedError

    @exercise
    def running_pass(self, budget: int) -> int:
        """R1, R2. Move the running requests forward, evicting while blocks are short. Returns the budget left. Roughly 18 lines.

        `at` walks `self.running`, while it has not come to the end and budget is left.
        1. `n = self.step_size(request, request.num_computed_tokens, budget)`. If it is 0, go on with the next.
        2. While it lacks more blocks (`pool.missing`) than `pool.num_free`: take `self.pick_victim()`; if that stands before `at`, `at`
           moves back by one; `self.preempt` it, and add the tokens that it gives back to the budget.
        3. If the request evicted itself: under FCFS the pass is over, even with budget left; by priority the next one stands at `at`
           now, for the request has left `running`.
        4. Otherwise `self.compute(request, n)`, pay for it, and go on.
        """
        raise NotImplementedError

    def pick_victim(self) -> Request:
        """R2. The last of `running`; by priority the one with the largest (priority, arrival), wherever it stands."""
        return (
            max(self.running, key=lambda other: (self.place(other), other.order)) if self.by_priority else self.running[-1]
        )

    def preempt(self, victim: Request) -> int:
        """R2, R3. Evict a running request: its KV is lost, its output stays. Returns the tokens it gives back to the step."""
        given_back = self.batch.tokens.pop(victim, 0)
        stored = victim.num_computed_tokens - given_back
        victim.recomputed_tokens += stored
        victim.num_preemptions += 1
        self.batch.thrown_away += stored
        self.batch.preempted.append(victim)
        self.running.remove(victim)
        self.pool.release(victim)
        self.waiting.push(victim)
        if given_back:  # the worker must not hear of it
            self.batch.known = [known for known in self.batch.known if known.id != victim.id]
        return given_back

    @exercise
    def look_up(self, request: Request) -> list[int]:
        """R4a. The cached blocks that a waiting request can begin with. Roughly 4 lines.

        None without `config.prefix_caching`. Otherwise `pool.lookup` of its `self.chain(request)`, prompt and outputs, among its
        `num_tokens`; it leaves one token at least to compute.
        """
        raise NotImplementedError

    @exercise
    def fit(self, request: Request, hit: Sequence[int], tokens: int) -> tuple[int, int]:
        """R5. What a waiting request must find to store its first `tokens` tokens: (blocks needed, blocks free). Roughly 7 lines.

        Needed: `blocks_needed` for the tokens, or, with `config.admission` "full_prompt", for all that it knows; less the blocks of the
        hit; and those blocks of the hit that are `pool.idle`, for they stand among the free ones. Free: `pool.num_free`, less
        `self.watermark_blocks` if anybody runs: an empty machine keeps nothing back.
        """
        raise NotImplementedError

    def why_wait(self, request: Request, budget: int) -> Wait | None:
        """The rule that keeps a request waiting with `budget` tokens left, or None if it may join."""
        batch, seats = self.batch, self.config.max_num_seqs
        if batch.preempted:
            return Wait("eviction", len(batch.preempted), 0, "R4 nobody joins in a step that evicts")
        if len(self.running) >= seats:
            return Wait("seats", len(self.running) + 1, seats, f"R4 needs a seat, all {seats} are taken")
        hit = self.look_up(request)
        computed = len(hit) * self.config.block_size
        n = self.step_size(request, computed, budget)
        if n == 0:
            least = 1 if self.config.chunked_prefill else request.num_tokens - computed
            return Wait("budget", least, budget, f"R4 needs {least} tokens, {budget} left")
        needed, free = self.fit(request, hit, computed + n)
        return Wait("blocks", needed, free, f"R5 needs {needed} blocks, {max(free, 0)} free") if needed > free else None

    @exercise
    def admission_pass(self, budget: int) -> int:
        """R4. Let requests in from the head of the queue until the head has to wait. Returns the budget left. Roughly 14 lines.

        While anybody waits:
        1. `self.batch.head = self.why_wait(head, budget)`; with a reason, stop: a waiting request evicts nobody, and nobody overtakes.
        2. Pop it, append it to `running`, and list it in `batch.resumed` if it was ever preempted, else in `batch.admitted`.
        3. Begin with what is cached: look it up, note the number of its tokens in `batch.hits[request]` and in
           `num_computed_tokens`. *Then* ask `step_size`: what was found need not be computed, nor paid for.
        4. `self.compute(request, n, hit)`.
        """
        raise NotImplementedError

    def compute(self, request: Request, n: int, hit: Sequence[int] | None = None) -> None:
        """R7, R8. Put n tokens into the step, with blocks for them, and tell the worker. hit: only for one that joins."""
        pool, computed = self.pool, request.num_computed_tokens
        total = blocks_needed(computed + n, self.config.block_size)
        if hit is None:
            blocks = pool.allocate(total - len(request.blocks)) if total > len(request.blocks) else []
            request.blocks += blocks
            self.batch.known.append(KnownRequest(request.id, False, blocks, computed))
        else:
            request.blocks = pool.claim(hit, total - len(hit))
            if request.num_preemptions:
                self.batch.known.append(KnownRequest(request.id, True, list(request.blocks), computed))
            else:
                self.batch.new.append(NewRequest(request.id, request.prompt, list(request.blocks), computed))
        request.num_computed_tokens = computed + n
        self.batch.tokens[request] = n
        if not self.safe:
            self.name_blocks(request, computed)

    def chain(self, request: Request) -> list[bytes]:
        """The names of a request's full blocks, outputs included; what was hashed before is not hashed again."""
        known = self.names.get(request, [])
        if (len(known) + 1) * self.config.block_size <= request.num_tokens:
            tokens = [*request.prompt, *request.output]
            known = self.names[request] = hash_chain(tokens, self.config.block_size, known=known)
        return known

    def name_blocks(self, request: Request, before: int) -> None:
        """R7. Name the blocks that became full since `before` tokens were computed, so that others find them."""
        full = request.num_computed_tokens // self.config.block_size
        if self.config.prefix_caching and full > before // self.config.block_size:
            self.pool.register(request.blocks, self.chain(request)[:full])

    @exercise
    def update(self, batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
        """R9. Take the tokens of an executed step, in scheduled order. Returns who finished. Roughly 7 lines.

        1. With `self.safe`, name what has now been computed: `self.name_blocks(request, tokens it had before the step)` for each
           request of the batch that is still in the step's state, that is, has no `finish_reason`.
        2. `append_tokens(batch, tokens)` appends, and says who ends.
        3. Each of those leaves through `abort` with its reason: its blocks are free at once, its last token is never stored.
        """
        raise NotImplementedError

    def abort(self, request_id: str, reason: str | None = "abort") -> Request | None:
        """End a request in whatever state it is and return it; None if no such request is live. Cached blocks stay cached."""
        request = self._live.pop(request_id, None)
        if request is not None:
            (self.running if request in self.running else self.waiting).remove(request)
            self.pool.release(request)
            self.names.pop(request, None)
            self._ended.append(request_id)
            request.finish_reason = reason
        return request

    def explain(self, batch: Batch) -> dict[str, Wait]:
        """Why each waiting request waits, by id and in the queue's order. Ask between `schedule` and `update`."""
        head = self.waiting.head().id if self.waiting else None
        behind = Wait("behind", 1, 0, f"R4 would fit, but waits behind {head}")
        return {other.id: self.why_wait(other, batch.budget_left) or behind for other in self.waiting}


def main(argv: list[str] | None = None) -> int:
    from kit import parity

    return parity.main(argv, UnifiedScheduler, Engine)


if __name__ == "__main__":
    raise SystemExit(main())

"""s14 is the whole scheduler again, from one rule: what is computed chases what is known. It takes vLLM's decisions.

The shape of the file: `SchedulerOutput`, what a worker is told; `UnifiedScheduler` with its two passes, each rule by its name in the
lesson (R0 to R9); `LongestPrefixFirst`, another order of the queue; `main`. The rules are those of vLLM 0.33.0 (v1, one GPU, no drafts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kit.config import Config, refuse_ignored
from kit.errors import DuplicateRequest, refuse_beyond
from kit.exercise import exercise
from kit.overtaking import OvertakingQueue
from kit.request import MOST_TOKENS, Request
from kit.waiting import WaitingQueue
from s05_paged_blocks import blocks_needed
from s07_prefix_cache import PrefixPool, block_hash, chain_start
from s08_static_batching import Batch, Engine, Wait, append_tokens


class NewRequest(NamedTuple):
    """All that a worker must know about a request that it has never seen. num_computed_tokens: before this step."""

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
    """A Batch, and with it the message to the worker: a few numbers for a request that it knows, however long that is."""

    new: list[NewRequest] = field(default_factory=list)
    known: list[KnownRequest] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)  # ended since the last message: the worker may forget them
    hits: dict[Request, int] = field(default_factory=dict)  # admitted or resumed -> tokens found in the cache


class UnifiedScheduler:
    """No prefill, no decode, no special case for a return: each step moves requests forward by as much as there is room for.

    config: of its options, `prefix_caching` and what s10 and s11 have (not `prefill_first`, nor the policy `shortest`).
    safe: name a block once its KV is computed (the lesson's "The bug hunt"). vLLM, and we without it, when it is handed out.
    """

    def __init__(self, config: Config, safe: bool = False):
        refuse_ignored(config, "s14")
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
        """R0, R1. How many tokens a request computes in this step, if `computed` of them are stored. Roughly 5 lines.

        budget: tokens left in the step.
        1. It is behind by `num_tokens - computed`. A prompt, a decode and a return differ in nothing but this number.
        2. R0: `config.long_prefill_token_threshold`, where it is above 0, caps it, so that a long prompt leaves tokens to the others;
           with nobody else in `running` or `waiting` there is nobody to leave them to.
        3. R1: the budget caps it, too.
        """
        raise NotImplementedError

    @exercise
    def running_pass(self, budget: int) -> int:
        """R1, R2. Move the running requests forward, evicting while blocks are short. Returns the budget left. Roughly 18 lines.

        An index `at` walks along `self.running`, to its end or until the budget is spent. (A `for` would step over somebody when a
        victim leaves the list that it walks.)
        1. `n = self.step_size(request, request.num_computed_tokens, budget)`. If it is 0 (it has caught up), go on with the next.
        2. While it lacks more blocks (`pool.missing`) than `pool.num_free`: `self.pick_victim()`. If that stands before `at`, `at`
           moves back by one. `self.preempt` it; the tokens that it gives back go to the budget.
        3. If it did not evict itself: `self.compute(request, n)`, pay for it, and go on. If it did, it has left `running`, so the
           next one stands at `at` already. (Under FCFS there is none: it was the last.)
        """
        raise NotImplementedError

    def pick_victim(self) -> Request:
        """R2. The last of `running`, who has had least; by priority the least important, wherever it stands."""
        if self.by_priority:
            return max(self.running, key=lambda other: (self.place(other), other.order))
        return self.running[-1]

    def preempt(self, victim: Request) -> int:
        """R2, R3. Evict a running request: its KV is lost, its output stays. Returns the tokens it gives back to the step."""
        # R2's refund: by priority the victim may stand before the cursor, served already in this very step
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
        """R4a. The cached blocks that a waiting request can begin with. Roughly 3 lines.

        Without `config.prefix_caching` none: []. Otherwise `pool.lookup` of its names, `self.chain(request)`. How much it knows,
        prompt *and* outputs, is `num_tokens`; the look-up leaves at least one token of it to compute.
        """
        raise NotImplementedError

    @exercise
    def fit(self, request: Request, hit: Sequence[int], tokens: int) -> tuple[int, int]:
        """R5. What a waiting request must find to store its first `tokens` tokens: (blocks needed, blocks free). Roughly 5 lines.

        tokens: those of the hit, and those that it computes now. With `config.admission` "full_prompt" (vLLM's default) take all that
        it knows in their place: a prompt let in by its first chunk alone may find no room for its second.
        Needed: `blocks_needed` for them, less the blocks of the hit, plus those of the hit that are `pool.idle`: they stand among the
        free ones, and will not be free any more. Free: `pool.num_free`, less `self.watermark_blocks` if anybody runs: blocks are kept
        for those who run, and on an empty machine there is nobody to keep them for.
        """
        raise NotImplementedError

    def why_wait(self, request: Request, budget: int) -> Wait | None:
        """R4, R5. The rule that keeps a request waiting with `budget` tokens left, or None if it may join."""
        seats = self.config.max_num_seqs
        if self.batch.preempted:  # what was just freed would go to the newcomer, and the next step would evict again
            return Wait("eviction", len(self.batch.preempted), 0, "R4 nobody joins in a step that evicts")
        if len(self.running) >= seats:
            return Wait("seats", len(self.running) + 1, seats, f"R4 needs a seat, all {seats} are taken")
        hit = self.look_up(request)
        computed = len(hit) * self.config.block_size
        least = 1 if self.config.chunked_prefill else self.step_size(request, computed, MOST_TOKENS)
        if least > budget:
            return Wait("budget", least, budget, f"R4 needs {least} tokens, {budget} left")
        needed, free = self.fit(request, hit, computed + self.step_size(request, computed, budget))
        return Wait("blocks", needed, free, f"R5 needs {needed} blocks, {max(free, 0)} free") if needed > free else None

    @exercise
    def admission_pass(self, budget: int) -> int:
        """R4. Let requests in from the head of the queue until the head has to wait. Returns the budget left. Roughly 14 lines.

        While anybody waits:
        1. `self.batch.head = self.why_wait(head, budget)`. With a reason, stop: a waiting request evicts nobody, and nobody overtakes.
        2. `look_up` what is cached. Then ask `step_size`: what was found need not be computed, nor paid for.
        3. Pop it, append it to `running`, and list it in `batch.resumed` if it was ever preempted, else in `batch.admitted`.
        4. The number of cached *tokens* goes to `batch.hits[request]` and is its `num_computed_tokens`. Then `self.compute(request, n,
           hit)`, and pay for n.
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
        """The names of a request's full blocks, outputs included. s07's `hash_chain`, but only what is new is read and hashed."""
        size, prompt = self.config.block_size, len(request.prompt)
        chain = self.names.setdefault(request, [])
        for start in range(len(chain) * size, request.num_tokens - size + 1, size):
            made = request.output[max(start - prompt, 0) : max(start + size - prompt, 0)]
            tokens = [*request.prompt[start : start + size], *made]
            if len(tokens) < size:
                break  # outputs that are only counted have no content to name
            chain.append(block_hash(chain[-1] if chain else chain_start(), tokens))
        return chain

    def name_blocks(self, request: Request, before: int) -> None:
        """R7. Name the blocks that became full since `before` tokens were computed, so that others find them."""
        size = self.config.block_size
        first, full = before // size, request.num_computed_tokens // size
        if self.config.prefix_caching and full > first:
            self.pool.register(request.blocks[first:full], self.chain(request)[first:full])

    @exercise
    def update(self, batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
        """R9. Take the tokens of an executed step. Returns who finished. Roughly 6 lines.

        1. With `self.safe`, `self.name_computed(batch)`: before anybody leaves, and with the tokens that the step computed.
        2. `append_tokens(batch, tokens)` appends in scheduled order, and returns those who end.
        3. Each of those leaves through `abort` with its own `finish_reason`: its blocks are free at once. Its last token was
           sampled and is never fed, so its KV is never computed.
        """
        raise NotImplementedError

    @exercise
    def name_computed(self, batch: Batch) -> None:
        """Extension. The safe mode's R7: name the blocks that an executed step has filled. Roughly 3 lines.

        Of each request in the batch: `self.name_blocks(request, tokens that it had before the step)`. But pass over one that has ended
        meanwhile (`finish_reason`): it has no blocks any more, and its names, once taken out, would be written down again.
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


class LongestPrefixFirst(OvertakingQueue):
    """Extension. Serves whoever finds most in the cache, like SGLang's `lpm`: `scheduler.waiting = LongestPrefixFirst(scheduler)`.

    patience: how many younger requests may pass somebody. Without it a stream of questions about one document starves all others.
    It looks everybody up at each admission, so it is for short queues (SGLang: up to 128, beyond that FCFS).
    """

    def __init__(self, scheduler: UnifiedScheduler, patience: float = 8):
        super().__init__(scheduler.place)
        self.look_up, self.patience = scheduler.look_up, patience

    def cached(self, request: Request) -> int:
        """Blocks that it would find now."""
        return len(self.look_up(request))

    @exercise
    def head(self) -> Request:
        """Who is next. Roughly 4 lines. Walking over `self` gives the order of arrival (or priority).

        1. The first in that order who has been passed `patience` times (`self.passed[request]`), if there is one.
        2. Else whoever has most blocks `self.cached`; of several the first in that order.
        """
        raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    from kit import parity

    return parity.main(argv, UnifiedScheduler, Engine)


if __name__ == "__main__":
    raise SystemExit(main())

"""Why, in words: a scheduler that says of each request in each step what happened to it, by which rule and which numbers.

`explaining(UnifiedScheduler)` is that scheduler with its seams listened to: it decides what it would have decided, and
the lesson's file needs no line for it. The rules R0 to R9 are those of the lesson.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kit.errors import RequestRefused
from kit.request import Request


class Told(NamedTuple):
    """One sentence. ids: the request that it is about, then the others that it names."""

    ids: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def narrowed(told: Iterable[Told], requests: Sequence[str]) -> list[Told]:
    """The sentences that name one of these requests, and the head line of the step; all if none is asked for."""
    return [entry for entry in told if not requests or not entry.ids or set(requests) & set(entry.ids)]


def state(scheduler: Any, request_id: str) -> str:
    """Where a request is: waiting, prefill, running, preempted, or gone: ended, or never seen."""
    for request in scheduler.running:
        if request.id == request_id:
            return "prefill" if request.num_computed_tokens < len(request.prompt) else "running"
    for request in scheduler.waiting:
        if request.id == request_id:
            return "preempted" if request.num_preemptions else "waiting"
    return "gone"


def explaining(scheduler: Any) -> Any:
    """The class `scheduler` (s14's) as one that explains itself. It has `tell_waiting` and `take_told` more."""

    class Explaining(scheduler):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            self._told: list[Told] = []
            self._asked: tuple[Request | None, int, int, int] = (None, 0, 0, 0)  # the last answer of step_size
            self._sizes: dict[Request, tuple[int, int]] = {}  # of this step: request -> (budget, n)
            self._fit = (0, 0)
            self._freed = 0
            self.unwritten: set[int] = set()  # blocks that have a name, and KV that nobody computed

        def tell(self, text: str, *requests: Request) -> None:
            self._told.append(Told(tuple(request.id for request in requests), text))

        def take_told(self) -> list[Told]:
            """What was said since the last time."""
            told, self._told = self._told, []
            return told

        # Before the step

        def add(self, request: Request) -> None:
            asked = request.max_tokens
            try:
                super().add(request)
            except RequestRefused as error:
                self.tell(f"{request.id} is refused: {str(error).partition(request.id)[2].strip()}", request)
                raise
            cut = f", cut from {asked:,}: max_model_len {self.config.max_model_len:,}" if request.max_tokens < asked else ""
            urgent = f", priority {request.priority:g}" if self.config.policy == "priority" else ""
            self.tell(
                f"{request.id} arrives: prompt {len(request.prompt):,}, max_tokens {request.max_tokens:,}{cut}{urgent}",
                request,
            )

        def abort(self, request_id: str, reason: str | None = "abort") -> Any:
            free, was = self.pool.num_free, state(self, request_id)
            ended = super().abort(request_id, reason)
            self._freed = self.pool.num_free - free
            if ended is not None and reason == "abort":
                self.tell(f"{request_id} aborted ({was}): {count(self._freed, 'block')} free at once", ended)
            return ended

        # The step

        def schedule(self) -> Any:
            self._sizes = {}
            config, running = self.config, list(self.running)
            before = len(self._told)
            free, waiting = self.pool.num_free, len(self.waiting)
            batch = super().schedule()
            used = sum(batch.tokens.values())
            head = (
                f"{used:,} of {config.max_num_batched_tokens:,} tokens for {count(len(batch.tokens), 'request')}; "
                f"running {len(running):,} -> {len(self.running):,} of {config.max_num_seqs:,}, "
                f"waiting {waiting:,} -> {len(self.waiting):,}, "
                f"free blocks {free:,} -> {self.pool.num_free:,} of {config.num_blocks:,}"
            )
            self._told.insert(before, Told((), head))
            return batch

        def running_pass(self, budget: int) -> int:
            running = list(self.running)
            left = super().running_pass(budget)
            batch = self.batch
            for request in running:
                if request in batch.tokens or request in batch.preempted:
                    continue
                _, n = self._sizes.get(request, (left, -1))
                behind = request.num_tokens - request.num_computed_tokens
                if n == 0:
                    why = f"R1 it may have 0 of the {behind:,} that it is behind by" if behind else "R1 it has caught up"
                elif left <= 0:
                    why = f"R1 the budget of {budget:,} is used up"
                else:  # not by the rules: a scheduler in the making may end its pass early, or step over somebody
                    after = f" after {batch.preempted[-1].id} was evicted" if batch.preempted else ""
                    why = f"R1 it was not looked at{after}, {count(left, 'token')} left"
                self.tell(f"{request.id} computes nothing: {why}", request)
            return left

        def step_size(self, request: Request, computed: int, budget: int) -> int:
            n = super().step_size(request, computed, budget)
            self._asked = (request, computed, budget, n)
            self._sizes[request] = (budget, n)
            return n

        def fit(self, request: Request, hit: Sequence[int], tokens: int) -> tuple[int, int]:
            self._fit = super().fit(request, hit, tokens)
            return self._fit

        def preempt(self, victim: Request) -> int:
            needy, _, budget, n = self._asked
            lacks, last = "R2", self.running[-1] is victim
            if needy:
                lacks += f" it lacks {count(self.pool.missing(needy, n), 'block')}, {self.pool.num_free:,} free"
            thrown, held, computed = victim.recomputed_tokens, list(victim.blocks), victim.num_computed_tokens
            back = super().preempt(victim)
            named = [block for block in held[(computed - back) // self.config.block_size :] if self.pool.names[block]]
            self.unwritten |= set(named if back else ())
            thrown = victim.recomputed_tokens - thrown
            if self.config.policy == "priority":
                place = (
                    f"{victim.id} is the least urgent of running "
                    f"(priority {victim.priority:g}, arrival {victim.arrival_ns:,})"
                )
                goes = "to its place by (priority, arrival)"
            else:
                place = f"{victim.id} is the last of running" if last else f"{victim.id} stands in running"
                goes = "to the front of the queue"
            if needy is None or needy is victim:
                ends = "; the next one is looked at"
                if self.config.policy != "priority":
                    ends = f", which ends the pass with {count(budget, 'token')} left"
                text = f"{victim.id} evicted for itself: {lacks}; {place}{ends}"
            else:
                text = f"{victim.id} evicted for {needy.id}: {lacks.replace(' it ', f' {needy.id} ')}; {place}"
            loses = f"; R3 it loses {thrown:,} stored tokens, keeps {count(len(victim.output), 'output')}, goes {goes}"
            if back:
                loses += f"; it was scheduled already, {count(back, 'token')} return to the budget"
            self.tell(text + loses, victim, *([needy] if needy is not None and needy is not victim else []))
            return back

        def compute(self, request: Request, n: int, hit: Sequence[int] | None = None) -> None:
            config = self.config
            computed, known, held = request.num_computed_tokens, request.num_tokens, len(request.blocks)
            behind = known - computed
            budget = self._sizes.get(request, (n, n))[0]
            if hit is not None:
                needed, free = self._fit
                found = f", R4a hits {count(computed, 'token')} in {count(len(hit), 'block')}" if hit else ""
                if never := len(self.unwritten & set(hit)):
                    found += f", {never:,} of them never computed (R7)"
                gate = f" for all {count(known, 'token')} it knows" if config.admission == "full_prompt" else ""
                verb = "resumes" if request.num_preemptions else "joins"
                self.tell(
                    f"{request.id} {verb}: R4 seat {len(self.running):,} of {config.max_num_seqs:,}{found}, "
                    f"R5 needs {count(needed, 'block')}{gate}, {free:,} free",
                    request,
                )
            super().compute(request, n, hit)
            self.unwritten -= set(request.blocks[held + len(hit or ()) :])
            if n < behind:
                threshold = config.long_prefill_token_threshold
                rule = f"R0 threshold {threshold:,}" if n == threshold and n < budget else f"R1 budget, {budget:,} left"
                if n == threshold == budget:
                    rule = f"R0 threshold {threshold:,}, R1 budget, {budget:,} left"
            else:
                rule = f"R1 all it is behind by, budget {budget:,} -> {budget - n:,}"
            took = len(request.blocks) - held - len(hit or ())
            blocks = f"; takes {count(took, 'block')}, {self.pool.num_free:,} left free" if took else ""
            samples = " and samples" if request.num_computed_tokens == request.num_tokens else ""
            self.tell(f"{request.id} computes {n:,} of {behind:,}{samples}: {rule}{blocks}", request)

        def tell_waiting(self, batch: Any) -> None:
            """Why each of those who wait does. Ask between `schedule` and `update`."""
            config, by_id = self.config, {request.id: request for request in self.waiting}
            for request_id, wait in (self.explain(batch) if by_id else {}).items():
                request, more = by_id[request_id], ""
                if request in batch.preempted:
                    continue
                if wait.rule == "blocks":
                    if config.admission == "full_prompt":
                        more = f" (for all {count(request.num_tokens, 'token')} it knows)"
                    if self.running and self.watermark_blocks:
                        more += f" (watermark keeps {self.watermark_blocks:,} more)"
                words = str(wait).replace(" 1 blocks", " 1 block").replace(" 1 tokens", " 1 token")
                self.tell(f"{request_id} waits: {words}{more}", request)

        # After the step

        def update(self, batch: Any, tokens: Any) -> list[Request]:
            freed: dict[Request, int] = {}
            abort = self.abort

            def listening(request_id: str, reason: str | None = "abort") -> Any:
                ended = abort(request_id, reason)
                if ended is not None:
                    freed[ended] = self._freed
                return ended

            self.abort = listening  # type: ignore[method-assign]
            try:
                finished = super().update(batch, tokens)
            finally:
                del self.abort
            for request in finished:
                made = count(len(request.output), "output")
                if request.finish_reason == "stop":
                    why = f"token {request.output[-1]} ends it, after {made}"
                elif self.config.max_model_len is not None and request.num_tokens >= self.config.max_model_len:
                    why = f"{request.num_tokens:,} tokens known, max_model_len {self.config.max_model_len:,}"
                else:
                    why = f"{made}, max_tokens {request.max_tokens:,}"
                free = f"; {count(freed.get(request, 0), 'block')} free at once" if request in freed else ""
                self.tell(f"{request.id} finishes ({request.finish_reason}): R9 {why}{free}", request)
            return finished

    Explaining.__name__ = f"Explaining{scheduler.__name__}"
    return Explaining

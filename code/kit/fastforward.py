"""Fast-forward: steps that are alike are taken in one go, and the report is the same to the last number.

Between two events steps repeat themselves: the same requests compute as many tokens as before. `steps_to_an_end` and
`steady_steps` tell the schedulers how many such steps are sure to come; `jump` takes them for the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from kit.request import MOST_TOKENS, Request

MOST = 4096  # steps of one jump: their ends are held in a list


class PricesAhead(Protocol):
    """A runner whose coming steps can be priced without being executed, and whose tokens have no content."""

    NO_CONTENT: list[int]

    def ahead(self, num_tokens: int, kv_tokens: Iterable[int]) -> Iterator[int]:
        """Nanoseconds of steps that compute `num_tokens` each, one step for each of `kv_tokens`."""
        ...


def possible(runner: Any, scheduler: Any) -> bool:
    """Whether this runner prices ahead and this scheduler looks ahead.

    A runner that says anew what `execute` does has to say what `ahead` does, or its price is not known.
    """
    executes = next((kind for kind in type(runner).__mro__ if "execute" in vars(kind)), object)
    return "ahead" in vars(executes) and hasattr(scheduler, "steady_steps")


# What a scheduler asks.


def steps_to_an_end(running: Iterable[Request]) -> int:
    """Steps up to and with the first that ends one of these requests, while each computes the one token it is behind by.

    1 if one is behind by more than that, or has a token to stop at: nobody knows when it will come. 1 also for nobody.
    """
    fewest = MOST + 1
    for request in running:
        known = request.num_tokens
        left = request.max_tokens + len(request.prompt) - known
        if left < fewest:
            fewest = left
        if known - request.num_computed_tokens != 1 or request.stop_token_ids:
            return 1
    return fewest if fewest <= MOST else 1


def steady_steps(scheduler: Any) -> int:
    """How many coming steps of s10's scheduler, or of one built on it, are sure to be alike if nobody arrives; else 1.

    Alike: the same requests compute the same numbers of tokens, nobody joins, nobody is evicted, and nobody ends or samples
    a first token before the last of them. So the head of the queue, if there is one, waits for one reason in all of them.
    """
    running, config = scheduler.running, scheduler.config
    if not running or scheduler.meter is not None or scheduler.batch.preempted:
        return 1
    budget, seats = config.max_num_batched_tokens, len(running)
    behind = running[-1].num_tokens - running[-1].num_computed_tokens
    if behind == 1 and seats <= budget:
        if scheduler.waiting and why_wait(scheduler, seats) is None:
            return 1
        if config.prefill_first and any(request.num_tokens == len(request.prompt) for request in running):
            return 1
        tokens, steps = dict.fromkeys(running, 1), steps_to_an_end(running)
    elif config.prefill_first or behind <= budget - seats + 1:  # its last chunk
        return 1
    else:
        tokens = shares(scheduler)
        steps = _steps_with_chunks(tokens)
        if scheduler.waiting and why_wait(scheduler, sum(tokens.values())) is None:
            return 1
    return _steps_with_blocks(scheduler.pool, tokens, steps) if steps > 1 else 1


def shares(scheduler: Any) -> dict[Request, int]:
    """What each running request computes in the next step: one token, or the chunk that those before it leave."""
    left = scheduler.config.max_num_batched_tokens
    tokens = {}
    for request in scheduler.running:
        n = request.num_tokens - request.num_computed_tokens
        if n > 1:
            n = scheduler.chunk_size(request, left)
        if n > left or n == 0:
            break
        tokens[request] = n
        left -= n
    return tokens


def _steps_with_chunks(tokens: dict[Request, int]) -> int:
    """As `steps_to_an_end`, but some compute a chunk; the last chunk of a prompt is none of these steps."""
    steps = steps_to_an_end([request for request, n in tokens.items() if n == 1])
    for request, n in tokens.items():
        behind = request.num_tokens - request.num_computed_tokens
        if behind > 1:
            steps = min(steps, (behind - 1) // n)
    return steps


def _steps_with_blocks(pool: Any, tokens: dict[Request, int], steps: int) -> int:
    """At most `steps`, and no more than the free blocks are sure to last for."""
    if len(tokens) + steps * sum(tokens.values()) // pool.block_size <= pool.num_free:  # surely
        return steps
    while steps > 1 and sum(max(0, pool.missing(request, n * steps)) for request, n in tokens.items()) > pool.num_free:
        steps //= 2
    return steps


def why_wait(scheduler: Any, computed: int) -> Any:
    """Why the head of the queue waits in the coming steps, which compute so many tokens; None if it does not."""
    if not hasattr(scheduler, "config"):
        return scheduler.why_wait()
    budget = scheduler.config.max_num_batched_tokens
    left = budget if scheduler.config.prefill_first else budget - computed
    return scheduler.why_wait(scheduler.waiting.head(), left)


# What the engine does.


def jump(engine: Any, most: int) -> Any:
    """Take up to `most` steps that are alike at once; fewer if somebody arrives, for the next step has to see that.

    Returns the last of them as a Batch. None, and nothing has happened but arrivals, where a usual step is to be taken: it is
    not sure that two steps are alike, or they don't continue the one before, which gave a token to exactly the same requests.
    """
    from s08_static_batching import Batch

    engine.arrive()
    steps = min(engine.scheduler.steady_steps(), most)
    if steps < 2:
        return None
    scheduler, report, runner = engine.scheduler, engine.report, engine.runner
    running = scheduler.running
    if report.num_open == len(running):  # with a token each in the step before, and one token behind now
        tokens, sampled = dict.fromkeys(running, 1), len(running)
    else:
        tokens = shares(scheduler)
        sampled = sum(request.num_tokens - request.num_computed_tokens == 1 for request in tokens)
        if not sampled or report.num_open != sampled:
            return None
    each, clock = sum(tokens.values()), engine.clock_ns
    until = engine.arrivals[0].arrival_ns if engine.arrivals else None
    kv_tokens = sum([request.num_computed_tokens for request in tokens]) + each
    ends = []
    for step_ns in runner.ahead(each, range(kv_tokens, kv_tokens + steps * each, each)):
        clock += step_ns
        ends.append(clock)
        if until is not None and clock >= until:
            break
    engine.clock_ns = clock
    wait = why_wait(scheduler, each) if scheduler.waiting else None
    used, finishing = _advance(scheduler, tokens, len(ends), runner.NO_CONTENT)
    if finishing:  # their last token goes the usual way, for a scheduler has more to do then
        scheduler.update(Batch(dict.fromkeys(finishing, 1)), {request.id: runner.NO_CONTENT for request in finishing})
        pool = getattr(scheduler, "pool", None)
        used[-1] = pool.num_blocks - pool.num_free if pool else 0
    report.repeat(ends, each, len(tokens), sampled, len(scheduler.waiting), used, wait.rule if wait else None, finishing)
    return Batch(head=wait)


def _advance(scheduler: Any, tokens: dict[Request, int], steps: int, token: list[int]) -> tuple[list[int], list[Request]]:
    """Move everybody on by so many steps. Returns the blocks in use after each, and those who end: they lack one token yet."""
    pool = getattr(scheduler, "pool", None)
    size = pool.block_size if pool else MOST_TOKENS
    made, but_one, finishing, takers = token * steps, token * (steps - 1), [], []
    for place, (request, n) in enumerate(tokens.items()):
        computed = request.num_computed_tokens
        then = request.num_computed_tokens = computed + n * steps
        stored = len(request.blocks) * size
        if then > stored and pool:
            for first in range(stored, then, size):
                takers.append(((first - computed) // n, place, request))
        if request.num_tokens - computed > 1:
            continue
        if then + 1 < request.max_tokens + len(request.prompt):
            request.output += made
            request.num_tokens = then + 1
        else:
            request.output += but_one
            request.num_tokens = then
            finishing.append(request)
    return _take(pool, takers, steps) if pool else [0] * steps, finishing


def _take(pool: Any, takers: list[tuple[int, int, Request]], steps: int) -> list[int]:
    """Hand out blocks to (step, place in the batch, request) in that order. Returns the blocks in use after each step."""
    used = pool.num_blocks - pool.num_free
    if not takers:
        return [used] * steps
    takers.sort()
    after: list[int] = []
    for (step, _, request), block in zip(takers, pool.allocate(len(takers)), strict=True):
        if step > len(after):
            after += [used] * (step - len(after))
        used += 1
        request.blocks.append(block)
    return after + [used] * (steps - len(after))

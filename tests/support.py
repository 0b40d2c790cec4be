"""What the tests share: failures that explain themselves, and a driver that checks a scheduler after every step.

Nothing here imports a lesson, so that a test run can decide which folder the lessons come from.
"""

from __future__ import annotations

import dis
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kit.errors import BlockError, NoFreeBlocks, RequestRefused
from kit.request import Request
from kit.runner import FakeRunner, fake_token, sampling

STUCK_AFTER = 50  # steps in a row without a token, with everybody arrived
STEP_LIMIT = 2000
S14_SECTIONS = {  # a section of s10 -> where s14 explains the same
    "Two passes": "How far a step goes",
    "When the pool is full": "Who gives way",
    "The way back": "Who gives way",
    "Who may join": "Who joins",
    "What is refused at the door": "Who joins",
}


class Mismatch(AssertionError):
    """What was called, what came back, what was expected, the usual cause, and where to read."""


def mismatch(where: str, call: str, got: Any, want: Any, cause: str, see: str) -> NoReturn:
    """Raise a Mismatch. see: 'lesson/section', e.g. 's10_scheduler/Two passes'."""
    __tracebackhide__ = True
    lesson, _, section = see.partition("/")
    rows = [(call, got), ("expected", want), ("likely cause", cause), ("see", f'lessons/{lesson}.md, "{section}"')]
    width = max(20, *(len(label) for label, _ in rows))
    lines = (f"  {label:{width}}  {text}".replace("\n", "\n" + " " * (width + 4)) for label, text in rows)
    raise Mismatch("\n".join([where, *lines])) from None


def expect(where: str, call: str, got: Any, want: Any, cause: str, see: str) -> None:
    """Fail with the whole story unless `got` equals `want`. Requests in lists are shown by their ids."""
    __tracebackhide__ = True
    if got != want:
        mismatch(where, call, show(got), show(want), cause, see)


def expect_attention(where: str, call: str, got: Any, batch: Any, see: str, **how: Any) -> None:
    """Fail unless a kernel's output is the attention of a batch of kit.ragged. how: `window`, `tile` and `splits`, for `verdict`."""
    __tracebackhide__ = True
    from kit.ragged import verdict

    found = verdict(got, batch, **how)
    if found.wrong:
        mismatch(where, call, found.wrong, f"attention in float64, to {found.tolerance:.0e} of it", found.cause, see)


def attempt(where: str, call: str, see: str, function: Callable, *args: Any, nobody_left: str = "") -> Any:
    """Call a function; an error that a wrong eviction ends in becomes a Mismatch with its cause.

    nobody_left: what an IndexError or ValueError means, where a victim was sought among nobody.
    """
    __tracebackhide__ = True
    causes: dict[type[Exception], str] = {
        NoFreeBlocks: "evict *while* the request lacks more blocks than are free (`while`, not `if`), and compute after that",
        BlockError: "blocks went back twice: release them in one place only, `_park` or the end of the request",
    }
    if nobody_left:
        causes |= {IndexError: nobody_left, ValueError: nobody_left}
    try:
        return function(*args)
    except tuple(causes) as error:
        cause = next(text for kind, text in causes.items() if isinstance(error, kind))
        mismatch(where, f"{call} raised", f"{type(error).__name__}: {error}", "no error", cause, see)


def returns_nothing(piece: Any) -> str:
    """The name of a function or kernel that is written but has no `return` with a value; else empty."""
    function = getattr(piece, "fn", piece)
    if function.__code__.co_name == "not_written":  # it raises NotWritten
        return ""
    before = None
    for now in dis.get_instructions(function):
        value = before if now.opname == "RETURN_VALUE" else now
        if now.opname.startswith("RETURN_") and not (value and value.opname.endswith("_CONST") and value.argval is None):
            return ""
        before = now
    return function.__name__


def show(value: Any) -> str:
    """A value as a test message shows it: requests by id, an empty list as `nobody`."""
    if isinstance(value, Request):
        return value.id
    if isinstance(value, dict):
        return " ".join(f"{show(key)}{show(item)}" for key, item in value.items()) or "nothing"
    if isinstance(value, (list, tuple)) and all(isinstance(item, Request) for item in value):
        return " ".join(request.id for request in value) or "nobody"
    return str(value)


def section(scheduler: Any, of_s10: str = "Two passes") -> str:
    """Where a general mistake of a scheduler is explained: in its own lesson; s10 has a section for each kind."""
    sections = {"s08_static_batching": "A closed batch", "s09_continuous_batching": "Decide every step"}
    lesson = type(scheduler).__module__
    if lesson == "s14_unified_scheduler":
        return f"{lesson}/{S14_SECTIONS[of_s10]}"
    lesson = min(lesson, "s10_scheduler")  # s11 to s13 build on s10, and send back to it
    return f"{lesson}/{sections.get(lesson, of_s10)}"


def progress(request: Request) -> str:
    return f"{request.id}, {request.num_computed_tokens} of {request.num_tokens} tokens computed,"


# Requests


def request(
    id: str, prompt: int, max_tokens: int, *, made: int = 0, arrival: int = 0, priority: float = 0, stop: Iterable[int] = ()
) -> Request:
    """A request with a prompt of `prompt` tokens that are its own; `made`: outputs that it has already."""
    first = 1000 * sum(map(ord, id))
    new = Request(id, range(first, first + prompt), max_tokens, arrival, priority, frozenset(stop))
    new.output = lone_output(new)[:made]
    new.num_tokens += made
    return new


def lone_output(request: Request) -> list[int]:
    """The tokens that a request gets when it is alone: whatever else the engine does, it must get the same."""
    output: list[int] = []
    while len(output) < request.max_tokens and not (output and output[-1] in request.stop_token_ids):
        output.append(fake_token([*request.prompt, *output]))
    return output


def seat(scheduler: Any, *requests: Request) -> None:
    """Put requests in `running` as if each had just sampled its last output: all but that token is stored."""
    for request in requests:
        _register(scheduler, request)
        if hasattr(scheduler, "pool"):
            scheduler.pool.grow(request, request.num_tokens - 1)
        request.num_computed_tokens = request.num_tokens - 1
        scheduler.running.append(request)


def queue(scheduler: Any, *requests: Request) -> None:
    """Put requests in `waiting` without asking `add`."""
    for request in requests:
        _register(scheduler, request)
        push = getattr(scheduler.waiting, "push", None) or scheduler.waiting.append
        push(request)


def _register(scheduler: Any, request: Request) -> None:
    scheduler._added = request.order = getattr(scheduler, "_added", 0) + 1
    scheduler._live[request.id] = request


# The driver


class Run:
    """Drives a scheduler by hand and checks it after every step; one step takes one nanosecond.

    Each request joins at the step that its `arrival_ns` names. What `add` refuses is kept in `refused`.
    """

    def __init__(self, scheduler: Any, requests: Iterable[Request] = ()):
        self.scheduler = scheduler
        self.arrivals = sorted(requests, key=lambda request: request.arrival_ns)
        self.requests: list[Request] = [*scheduler.running, *scheduler.waiting]
        self.refused: dict[str, RequestRefused] = {}
        self.computed = Counter({one.id: one.num_computed_tokens for one in self.requests})
        self.cached: Counter[str] = Counter()  # tokens that were found in the cache
        self.kv: dict[int, dict[int, Any]] = {}  # block -> offset -> what stands there, in the words of `content`
        self.cpu_kv: dict[int, dict[int, Any]] = {}  # the same of the CPU's blocks (s12)
        self.chains: dict[Request, list[int]] = {}
        for one in self.requests:
            for position in range(one.num_computed_tokens if one.blocks else 0):
                self.store(one, position)
        self.finished: list[Request] = []
        self.streamed: dict[str, int] = {}
        self.now = 0
        self.name = ""  # of the load, for messages
        self.runner = FakeRunner()

    def at(self, step: int) -> str:
        """Where a failure happened; steps count from 1."""
        return f"step {step}" + (
            f" of {self.name}" if self.name.startswith("the ") else f": {self.name}" if self.name else ""
        )

    def arrive(self) -> None:
        while self.arrivals and self.arrivals[0].arrival_ns <= self.now:
            request = self.arrivals.pop(0)
            try:
                self.scheduler.add(request)
                self.requests.append(request)
            except RequestRefused as error:
                self.refused[request.id] = error

    def schedule(self) -> Any:
        """Arrivals, then one checked call of schedule()."""
        __tracebackhide__ = True
        self.arrive()
        batch = attempt(
            self.at(self.now + 1), "schedule()", section(self.scheduler, "When the pool is full"), self.scheduler.schedule
        )
        if not hasattr(batch, "tokens"):
            cause, see = "the last line of schedule() returns the batch", section(self.scheduler)
            mismatch(self.at(self.now + 1), "schedule() returned", batch, "a Batch", cause, see)
        self.check_batch(batch)
        return batch

    def update(self, batch: Any) -> list[Request]:
        """Execute the batch, hand its tokens over, and check that nobody and nothing got lost."""
        __tracebackhide__ = True
        for request, n in batch.tokens.items():
            self.computed[request.id] += n
        for request, n in getattr(batch, "hits", {}).items():
            self.cached[request.id] += n
        streamed = {request.id: request.num_output_tokens for request in self.requests}
        tokens, _ = self.runner.execute(batch)
        self.now += 1
        finished = self.scheduler.update(batch, tokens)
        for request in self.requests:
            if self.streamed.get(request.id, 0) > streamed[request.id]:
                text = f"{request.id} has {streamed[request.id]} output tokens, and had {self.streamed[request.id]}"
                cause = "an eviction throws the KV away, not the output: its user has read those tokens"
                mismatch(
                    f"step {self.now}", "after schedule()", text, "no fewer", cause, section(self.scheduler, "The way back")
                )
        self.streamed = {request.id: request.num_output_tokens for request in self.requests}
        self.finished += finished
        for request in finished:
            self.check_finished(request)
        check_conservation(self.scheduler, self.requests, f"after {self.at(self.now)}")
        return finished

    def step(self) -> Any:
        __tracebackhide__ = True
        batch = self.schedule()
        self.update(batch)
        return batch

    def to_end(self, each: Callable[[Run], None] | None = None) -> Run:
        """Step until everybody is done. each: called before every step, to abort or look."""
        __tracebackhide__ = True
        idle = 0
        while self.arrivals or self.scheduler.waiting or self.scheduler.running:
            if each:
                each(self)
            batch = self.step()
            idle = 0 if batch.tokens or self.arrivals else idle + 1
            if idle == STUCK_AFTER or self.now == STEP_LIMIT:
                self.stuck(batch, idle)
        return self

    def stuck(self, batch: Any, idle: int) -> NoReturn:
        __tracebackhide__ = True
        running, waiting = list(self.scheduler.running), list(self.scheduler.waiting)
        mismatch(
            f"step {self.now}: {len(running)} running, {len(waiting)} waiting",
            "schedule()",
            f"made no progress for {STUCK_AFTER} steps" if idle else f"is not done after {STEP_LIMIT} steps",
            "everything that `add` accepted finishes",
            f"at the head {waiting[0].id} waits: {batch.head}"
            if waiting
            else f"{running[0].id} runs and computes nothing: {progress(running[0])[:-1]}",
            section(self.scheduler, "What is refused at the door"),
        )

    def check_batch(self, batch: Any) -> None:
        """What must hold of every batch, whatever the load."""
        __tracebackhide__ = True
        scheduler, where, total = self.scheduler, self.at(self.now + 1), sum(batch.tokens.values())
        config = getattr(scheduler, "config", None)
        seats = config.max_num_seqs if config else scheduler.max_num_seqs
        passes = section(scheduler)
        call, all_tokens = "schedule() computed", show(batch.tokens)
        for request, n in batch.tokens.items():
            if n < 1:
                cause = "a request that can compute nothing has no place in the batch"
                mismatch(where, call, f"{request.id}{n}", "at least one token of each in the batch", cause, passes)
            if request not in scheduler.running:
                cause = "an evicted request still stands in `batch.tokens`: it computes nothing in this step"
                mismatch(where, call, f"{all_tokens}, {request.id} not running", "running requests only", cause, passes)
            if request.num_computed_tokens > request.num_tokens:
                cause = "a request computes what it is behind by, num_tokens - num_computed_tokens, and no more"
                mismatch(where, call, progress(request)[:-1], "computed at most what is known", cause, passes)
        if len(scheduler.running) > seats:
            cause = f"`max_num_seqs` is {seats}: the seat must be free before somebody takes it"
            mismatch(where, "running", show(scheduler.running), f"at most {seats} requests", cause, passes)
        if scheduler.waiting and batch.head is None:
            cause = "the Wait of the head of the queue is lost: assign it to `batch.head`"
            head = next(iter(scheduler.waiting)).id
            mismatch(where, "batch.head", None, f"the reason why {head} waits", cause, passes)
        if config:
            self.check_limits(batch, where, total)
            self.check_memory(batch, where)

    def check_limits(self, batch: Any, where: str, total: int) -> None:
        __tracebackhide__ = True
        config, joined = self.scheduler.config, [*batch.admitted, *batch.resumed, *batch.swapped_in]
        if total > config.max_num_batched_tokens:
            text = f"{show(batch.tokens)}: {total} tokens"
            cause = "every computed token is taken off the budget, the decodes' too, before anybody else gets some"
            want = f"at most the budget, {config.max_num_batched_tokens}"
            mismatch(where, "schedule() computed", text, want, cause, section(self.scheduler, "Two passes"))
        full = len(self.scheduler.running) == config.max_num_seqs
        took_a_seat = config.preempt_for_priority and len(batch.preempted) == 1 and full
        if batch.preempted and joined and not took_a_seat:
            cause = "a step that evicts admits nobody: what it just freed would go to the newcomer"
            text = f"{show(batch.preempted)} evicted, {show(joined)} admitted"
            mismatch(where, "schedule()", text, "nobody admitted", cause, section(self.scheduler, "Who may join"))
        alone = hasattr(self.scheduler.pool, "names") and len(self.scheduler.running) == 1  # s14 keeps no blocks for nobody
        if joined and not alone and self.scheduler.pool.num_free < config.watermark_blocks:
            cause = "an admission may fill the blocks above the watermark only; the rest is kept for those who run"
            text = f"{self.scheduler.pool.num_free} blocks free after {show(joined)} joined"
            want = f"at least {config.watermark_blocks} left free"
            mismatch(where, "schedule() left", text, want, cause, section(self.scheduler, "Who may join"))

    def check_memory(self, batch: Any, where: str) -> None:
        """Copy what is swapped, write each computed token to its block, then read back all that its request attends to."""
        __tracebackhide__ = True
        size = self.scheduler.pool.block_size
        self.copy_swapped(batch)
        names = getattr(self.scheduler.pool, "names", {})
        for block in self.scheduler.pool.free_blocks:
            if not names or names[block] is None:  # a cached block keeps its KV, whoever else it has
                self.kv.pop(block, None)
        for phase in ("write", "read"):
            for request, n in batch.tokens.items():
                first = request.num_computed_tokens - n if phase == "write" else 0
                for position in range(first, request.num_computed_tokens):
                    block = request.blocks[position // size] if position // size < len(request.blocks) else None
                    if block is None:
                        text = f"{progress(request)} has {len(request.blocks)} blocks of {size}"
                        cause = "its blocks must be there before its tokens are computed"
                        want = f"a block for its token {position + 1}"
                        mismatch(where, "schedule()", text, want, cause, section(self.scheduler, "When the pool is full"))
                    if phase == "write":
                        self.store(request, position)
                    elif self.kv.get(block, {}).get(position % size) != self.content(request, position):
                        text = f"{request.id} attends to its token {position + 1}, which is not stored"
                        cause, see = self.why_not_stored(request, batch)
                        if names and names[block] is not None and position < request.num_computed_tokens - n:
                            there = "nothing" if position % size not in self.kv.get(block, {}) else "another's KV"
                            text = (
                                f"{request.id} attends to its token {position + 1}, and block {block} holds {there} there"
                            )
                            cause = (
                                "the block has the name of KV that was never computed: its owner was evicted in the step that was "
                                "to compute it, or the hit is taken for longer than what `look_up` found"
                            )
                        want = f"all of its {request.num_computed_tokens} tokens in its blocks"
                        mismatch(where, "schedule()", text, want, cause, see)

    def copy_swapped(self, batch: Any) -> None:
        """What a runner does first: every copy to the CPU, then every copy back. What lies in a free block is nobody's."""
        for blocks, source, target in (
            (batch.blocks_to_swap_out, self.kv, self.cpu_kv),
            (batch.blocks_to_swap_in, self.cpu_kv, self.kv),
        ):
            for block, other in blocks:
                target[other] = dict(source.get(block, {}))
        cpu_pool = getattr(self.scheduler, "cpu_pool", None)
        for block in cpu_pool.free_blocks if cpu_pool else ():
            self.cpu_kv.pop(block, None)

    def why_not_stored(self, request: Request, batch: Any) -> tuple[str, str]:
        """The usual cause of KV that isn't there, and where it is explained."""
        if request not in batch.swapped_in:
            cause = "faster than physics: eviction throws the KV away, so num_computed_tokens goes back to 0"
            return cause, section(self.scheduler, "The way back")
        copied = {gpu for _, gpu in batch.blocks_to_swap_in}
        cause = "a swap went wrong: what was copied out is not what came back"
        if not copied.intersection(request.blocks):
            cause = "it was swapped in, and no copy brings its KV: list (CPU block, GPU block) in blocks_to_swap_in"
        return cause, "s12_preemption/Swap out, swap in"

    def store(self, request: Request, position: int) -> None:
        block, offset = (
            request.blocks[position // self.scheduler.pool.block_size],
            position % self.scheduler.pool.block_size,
        )
        if offset == 0:
            self.kv[block] = {}  # a new owner's first token: nothing of the last one counts any more
        self.kv.setdefault(block, {})[offset] = self.content(request, position)

    def content(self, request: Request, position: int) -> Any:
        """What must stand where a request reads: its own KV, or, where blocks are shared, that of equal tokens up to here."""
        if not hasattr(self.scheduler.pool, "names"):
            return request, position
        chain = self.chains.setdefault(request, [0])
        if len(chain) <= position + 1:
            for token in [*request.prompt, *request.output][len(chain) - 1 :]:
                chain.append(hash((chain[-1], token)))
        return chain[position + 1]

    def check_finished(self, request: Request) -> None:
        __tracebackhide__ = True
        where, passes = f"{request.id} has finished", section(self.scheduler, "The way back")
        cause = "a token got lost or came twice: an evicted request keeps its output, and nothing is sampled behind it"
        if request.output != lone_output(request):
            mismatch(where, "its output", request.output, f"{lone_output(request)}, as when alone", cause, passes)
        needed = request.num_tokens - 1 + request.recomputed_tokens - self.cached[request.id]
        if self.computed[request.id] != needed:
            if self.computed[request.id] < needed:
                cause = "faster than physics: num_computed_tokens says that tokens are stored which were thrown away"
            else:
                cause = "more computed than needed: tokens were thrown away without being counted in recomputed_tokens"
            want = f"{request.num_tokens - 1} to store, and {request.recomputed_tokens} again after evictions: {needed}"
            if self.cached[request.id]:
                want = want.replace(": ", f", less {self.cached[request.id]} from the cache: ")
            mismatch(where, "tokens computed for it", self.computed[request.id], want, cause, passes)


def run_to_end(scheduler: Any, requests: Iterable[Request]) -> Run:
    """Run everything to its end with every check on; a hang becomes a message."""
    __tracebackhide__ = True
    return Run(scheduler, requests).to_end()


def check_conservation(scheduler: Any, requests: Iterable[Request], where: str = "between two steps") -> None:
    """Each live request is in exactly one place, each block has one owner, and all blocks are accounted for."""
    __tracebackhide__ = True
    see = section(scheduler)
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    places = Counter(id(request) for request in [*running, *waiting])
    for request in requests:
        found, want = places.pop(id(request), 0), int(request.finish_reason is None)
        if found != want:
            text = f"{found} times in the queues; running: {show(running)}, waiting: {show(waiting)}"
            if not want:
                cause = "a request that has ended leaves its queue"
            elif found:
                cause = "a request that moves from one queue to the other leaves the first"
            else:
                cause = "it was taken out of one queue and not put into the other"
            mismatch(where, request.id, text, "in exactly one queue" if want else "in none: it has ended", cause, see)
    if hasattr(scheduler, "pool"):
        _check_blocks(scheduler, list(requests), where, section(scheduler, "When the pool is full"))


def _check_blocks(scheduler: Any, requests: list[Request], where: str, see: str) -> None:
    __tracebackhide__ = True
    pool = scheduler.pool
    owner: dict[int, str] = {}
    tables: dict[Request, list[int]] = getattr(scheduler, "cpu_tables", {})
    _check_cpu_blocks(scheduler, tables, where)
    owners = Counter(block for request in requests for block in request.blocks)
    shared = getattr(pool, "ref_count", None)
    for request in requests:
        for block in request.blocks:
            if shared is not None:
                if shared[block] != owners[block]:
                    text = f"has {shared[block]} owners in the pool, and stands in {owners[block]} tables"
                    cause = "a hit is claimed with `pool.claim`, which counts its new owner, and goes back once for each"
                    mismatch(where, f"block {block}", text, "as many owners as tables", cause, see)
            elif block in owner:
                text = f"{owner[block]} and {request.id} both own block {block}"
                mismatch(where, "block tables", text, "one owner a block", "a freed table still lists its blocks", see)
            owner[block] = request.id
        if request.blocks and (request.finish_reason or request not in scheduler.running):
            state = f"ended as {request.finish_reason}" if request.finish_reason else "waits"
            text = f"holds {len(request.blocks)} blocks, but {state}"
            cause = "its blocks never came back: release them at every exit, eviction and abort included"
            mismatch(where, request.id, text, "no blocks", cause, see)
        room = len(tables.get(request, request.blocks)) * pool.block_size
        if request.num_computed_tokens > room:
            text = f"{progress(request)} with {len(request.blocks)} blocks of {pool.block_size}"
            cause = "faster than physics: what is not in a block is not stored, so num_computed_tokens must be 0"
            mismatch(where, request.id, text, "computed tokens fit into its blocks", cause, see)
    if lost := leaked_blocks(scheduler, requests):
        text = f"{pool.num_free} free + {len(owner)} used = {pool.num_free + len(owner)}"
        cause = f"{lost} blocks leaked: a block table was dropped before `pool` got its blocks back"
        mismatch(where, "blocks", text, f"the pool, {pool.num_blocks}", cause, see)


def _check_cpu_blocks(scheduler: Any, tables: Mapping[Request, list[int]], where: str) -> None:
    """Who is swapped out waits, and holds its CPU blocks alone; all others are free."""
    __tracebackhide__ = True
    see = "s12_preemption/Swap out, swap in"
    for request, blocks in tables.items():
        if request.finish_reason is not None or request not in scheduler.waiting:
            state = "has ended" if request.finish_reason else "does not wait"
            cause = "who returns or ends leaves `cpu_tables`, and its CPU blocks go back to `cpu_pool`"
            mismatch(where, request.id, f"holds {len(blocks)} CPU blocks, but {state}", "no CPU blocks", cause, see)
    cpu_pool = getattr(scheduler, "cpu_pool", None)
    if cpu_pool is not None:
        held = [block for blocks in tables.values() for block in blocks]
        if cpu_pool.num_free + len(held) != cpu_pool.num_blocks or len(set(held)) != len(held):
            text = f"{cpu_pool.num_free} free + {len(held)} held = {cpu_pool.num_free + len(held)}"
            cause = "CPU blocks leaked: they go back when their request returns, and when it ends while it is swapped out"
            mismatch(where, "CPU blocks", text, f"the CPU pool, {cpu_pool.num_blocks}", cause, see)


def leaked_blocks(scheduler: Any, requests: Iterable[Request]) -> int:
    """Blocks that are neither free nor in anybody's block table."""
    if not hasattr(scheduler, "pool"):
        return 0
    return scheduler.pool.num_blocks - scheduler.pool.num_free - len({b for request in requests for b in request.blocks})


# Exact traces


@dataclass
class Row:
    """One line of a trace: `A1 B1 | C evicted, D waits: budget 2 > 1, A done`."""

    tokens: dict[str, int] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    head: tuple[str, str, int, int] | None = None  # id, rule, needed, available

    @classmethod
    def parse(cls, text: str) -> Row:
        computed, _, events = text.partition("|")
        row = cls({cell.rstrip("0123456789"): int(re.sub(r"^\D+", "", cell)) for cell in computed.split()})
        for event in filter(None, map(str.strip, events.split(","))):
            name, _, what = event.partition(" ")
            if what == "evicted":
                row.evicted.append(name)
            elif what == "done":
                row.done.append(name)
            elif match := re.fullmatch(r"waits: (\w+) (-?\d+) > (-?\d+)", what):
                row.head = (name, match[1], int(match[2]), int(match[3]))
            else:
                raise ValueError(f"trace event {event!r}")
        return row

    def __str__(self) -> str:
        return " ".join(f"{name}{n}" for name, n in self.tokens.items()) or "nothing"

    @property
    def events(self) -> str:
        """What happened beside the tokens, in words."""
        parts = [f"{name} evicted" for name in self.evicted]
        parts += ["nobody admitted"] if self.evicted else []
        if self.head:
            name, rule, needed, available = self.head
            parts.append(f"{name} waits: {rule} (needed {needed}, available {available})")
        return ", ".join(parts)


Causes = Mapping[str, str]


def expect_steps(where: str, run: Run, table: Sequence[str], see: str, causes: Causes | None = None) -> None:
    """Run an exact trace; the first step that differs fails, with a cause chosen from what differs.

    table: one line a step, in the form of Row. causes: lesson-specific texts for the keys `joined`, `absent` and `wrongly`
    (evicted).
    """
    __tracebackhide__ = True
    run.name = where
    for number, line in enumerate(table, 1):
        want = Row.parse(line)
        before = _Before(run)
        batch = run.schedule()
        got = Row({r.id: n for r, n in batch.tokens.items()}, [r.id for r in batch.preempted])
        if batch.head is not None and run.scheduler.waiting:
            head = next(iter(run.scheduler.waiting)).id
            got.head = (head, batch.head.rule, batch.head.needed, batch.head.available)
        head_differs = want.head is not None and got.head != want.head
        if list(got.tokens.items()) != list(want.tokens.items()) or got.evicted != want.evicted or head_differs:
            leaked = leaked_blocks(run.scheduler, run.requests)
            cause = f"{leaked} blocks leaked: an evicted request's blocks go back to the pool, in `_park`" if leaked else ""
            cause = cause or _likely_cause(before, want, got, causes or {})
            got.head = got.head if head_differs else None
            left, right = f"{got!s:16} {got.events}".rstrip(), f"{want!s:16} {want.events}".rstrip()
            mismatch(run.at(number), "schedule() computed", left, right, cause, see)
        done = sorted(request.id for request in run.update(batch))
        if done != sorted(want.done):
            cause = "a request ends with its last token, in `update`"
            mismatch(run.at(number), "update() finished", show(done), show(sorted(want.done)), cause, see)


class _Before:
    """What a step started from, in ids, as far as a diagnosis needs it."""

    def __init__(self, run: Run):
        run.arrive()
        scheduler = run.scheduler
        self.running = [request.id for request in scheduler.running]
        self.waiting = [request.id for request in scheduler.waiting]
        self.requests = {request.id: request for request in run.requests}
        self.evicted_before = {request.id for request in run.requests if request.num_preemptions}
        self.known = {request.id: request.num_tokens for request in run.requests}
        self.config = getattr(scheduler, "config", None)
        self.grower = ""
        if self.config:
            self.free = scheduler.pool.num_free
            growing = (r for r in scheduler.running if scheduler.pool.missing(r, r.num_tokens - r.num_computed_tokens) > 0)
            if request := next(growing, None):
                free = f"{self.free or 'none'} {'is' if self.free < 2 else 'are'} free"
                self.grower = f"{request.id}'s token {request.num_computed_tokens + 1} needs a block and {free}"


def _likely_cause(before: _Before, want: Row, got: Row, causes: Causes) -> str:
    missed = [name for name in want.evicted if name not in got.evicted]
    wrongly = [name for name in got.evicted if name not in want.evicted]
    joined = [name for name in got.tokens if name not in before.running and name not in want.tokens]
    absent = [name for name in want.tokens if name not in got.tokens and name not in before.running]
    unfed = [name for name in want.tokens if name not in got.tokens and name in before.running]
    if missed and wrongly:
        priority = before.config is not None and before.config.policy == "priority"
        whom = "the largest (priority, arrival)" if priority else "the last admitted"
        return f"the wrong victim: {before.grower}, and the policy evicts {whom}"
    if missed and got.evicted:
        return "one eviction may not be enough: evict *while* blocks are short, not once"
    if missed:
        return f"{before.grower}: evict the last admitted first"
    if wrongly:
        return (
            causes.get("wrongly")
            or "nobody has to be evicted: evict while a request lacks *more* blocks than are free, an exact fit is enough"
        )
    if joined and want.evicted:
        return "a step that evicts admits nobody: what it just freed would go to the newcomer"
    for name in want.tokens.keys() & got.tokens.keys():
        if got.tokens[name] != want.tokens[name]:
            return _wrong_number(before, name, want.tokens[name], got.tokens[name])
    if joined and want.head and joined[0] != want.head[0]:
        front, name = want.head[0], joined[0]
        if front in before.waiting and before.waiting.index(front) > before.waiting.index(name):
            return f"{front} was evicted and pushed with a new order: it came before {name}, so it goes to the front"
        return f"nobody overtakes the head of the queue: {name} stands behind {front}"
    if joined:
        return causes.get("joined") or f"{joined[0]} has to wait: ask why_wait(request, budget) before it joins"
    if unfed:
        return f"{unfed[0]} runs already: every running request gets its token before anybody joins"
    if absent and got.head and got.head[2] == got.head[3]:
        return "an exact fit is enough: it waits if it needs *more* than is left"
    if absent:
        return causes.get("absent") or f"{absent[0]} fits: budget, seats and blocks are there, an exact fit is enough"
    if list(got.tokens) != list(want.tokens):
        return "the order is that of `running`: first come, first in the batch; newcomers last"
    if want.head and want.head[1] == "budget" and (got.head is None or got.head[0] == want.head[0]):
        spent = sum(want.tokens.values())
        return f"decodes and prompts have spent {spent} tokens of this step: left {want.head[3]}, needed {want.head[2]}"
    return "the reason of the head is the first rule that holds it back, with the two numbers that the rule compares"


def _wrong_number(before: _Before, name: str, want: int, got: int) -> str:
    prompt = len(before.requests[name].prompt)
    if name in before.evicted_before and got == prompt:
        return f"{name} recomputes its prompt only: its outputs lost their KV too, so it is behind by all {want}"
    if name in before.evicted_before and got < want:
        return f"num_computed_tokens survived the eviction: the KV is gone, so {name} is behind by all {want} tokens"
    if got > want and got >= before.known[name]:
        return "num_computed_tokens was not advanced in the step before: the whole prompt is computed again"
    return f"a request computes what it is behind by, num_tokens - num_computed_tokens: {want}"


def sampled(batch: Any) -> dict[str, list[int]]:
    """The tokens of a batch, as a runner would return them."""
    return FakeRunner().execute(batch)[0] if sampling(batch) else {}

"""What s14 shows beside the replay: its running example, the bug hunt, the safe mode's price, orders of the queue, messages.

Every experiment takes the scheduler's class, so that a notebook runs the learner's own. tools/tables.py prints them all.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kit.config import Config
from kit.replay import translate
from kit.report import table
from kit.request import Request
from kit.runner import FakeRunner
from kit.worker import Worker, message

TRACES = Path(__file__).resolve().parents[2] / "tests/data/vllm/traces.jsonl.gz"


def drive(scheduler: Any, requests: Iterable[Request], runner: Any = None) -> Iterator[Any]:
    """Run requests to their end, one joining at the step that its `arrival_ns` names; yields each executed batch."""
    arrivals, step, runner = sorted(requests, key=lambda request: request.arrival_ns), 0, runner or FakeRunner()
    while arrivals or scheduler.running or scheduler.waiting:
        while arrivals and arrivals[0].arrival_ns <= step:
            scheduler.add(arrivals.pop(0))
        batch = scheduler.schedule()
        tokens, _ = runner.execute(batch)
        scheduler.update(batch, tokens)
        step += 1
        yield batch


# The running example -------------------------------------------------------------------------------------------------


def example_config(**options: Any) -> Config:
    limits: dict[str, Any] = dict(max_num_batched_tokens=12, max_num_seqs=3, num_blocks=8, block_size=4, watermark=0)
    return Config(
        **{**limits, "long_prefill_token_threshold": 8, "prefix_caching": True, "admission": "full_prompt", **options}
    )


def example() -> list[Request]:
    """A, B and C are there at once; B begins with A's first eight tokens, and D asks for C's prompt again, later."""
    return [
        Request("A", range(17), 8),
        Request("B", [*range(8), *range(50, 54)], 7),
        Request("C", range(70, 78), 3),
        Request("D", range(70, 78), 2, 8),
    ]


def show(scheduler: Any, requests: Sequence[Request], runner: Any = None) -> str:
    """A run, step by step."""
    rows = []
    for number, batch in enumerate(drive(scheduler, requests, runner), 1):
        events = [f"{request.id} finds {n}" for request, n in batch.hits.items() if n]
        events += [f"{request.id} is evicted" for request in batch.preempted]
        if batch.head is not None and scheduler.waiting:
            events.append(f"{scheduler.waiting.head().id} waits: {batch.head}")
        events += [f"{request.id} done" for request in batch.tokens if request.finish_reason]
        computed = " ".join(f"{request.id}{n}" for request, n in batch.tokens.items()) or "-"
        rows.append((number, computed, batch.budget_left, scheduler.pool.num_free, "; ".join(events)))
    return table(("step", "computes", "left", "free after", "event"), rows)


def unified_example() -> None:
    from s14_unified_scheduler import UnifiedScheduler

    print(show(UnifiedScheduler(example_config()), example()))


class Bar(NamedTuple):
    """A request in one step: tokens stored before it, of these found in the cache, computed in it, and known."""

    label: str
    stored: int
    found: int
    computed: int
    known: int


def bars(make: Callable[[Config], Any]) -> list[Bar]:
    """Six moments of the running example."""
    chosen = {
        (1, "A"): "a prompt's first part",
        (1, "B"): "a prompt, its beginning cached",
        (2, "A"): "a prompt's next part",
    }
    chosen |= {(4, "A"): "a decode", (11, "B"): "a return, cached", (11, "C"): "a return, nothing cached"}
    found: dict[tuple[int, str], Bar] = {}
    last: dict[Request, tuple[int, int]] = {}  # known and computed after its last step
    for number, batch in enumerate(drive(make(example_config()), example()), 1):
        for request, n in batch.tokens.items():
            known, stored = last.get(request, (len(request.prompt), 0))
            stored = batch.hits.get(request, stored)  # who joins has what it finds
            last[request] = request.num_tokens, stored + n
            if moment := chosen.get((number, request.id)):
                label = f"step {number}, {request.id}: {moment}"
                found[number, request.id] = Bar(label, stored, batch.hits.get(request, 0), n, known)
    return [found[key] for key in chosen if key in found]


def picture(make: Callable[[Config], Any]) -> str:
    """The bars as an SVG."""
    left, top, wide, high = 290, 44, 24, 40
    rows = bars(make)
    width, height = left + max(bar.known for bar in rows) * wide + 150, top + len(rows) * high + 50
    title = "One rule: computed chases known"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13" fill="#222">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="14" y="24" font-weight="bold">{title}</text>',
    ]
    for i, bar in enumerate(rows):
        y = top + i * high
        parts.append(f'<text x="14" y="{y + 20}">{bar.label}</text>')
        for token in range(bar.known):
            if token < bar.found:
                look = 'fill="#CC79A7"'
            elif token < bar.stored:
                look = 'fill="#cfe3f2"'
            elif token < bar.stored + bar.computed:
                look = 'fill="#0072B2"'
            else:
                look = 'fill="#fff" stroke="#999" stroke-dasharray="4 3"'
            parts.append(
                f'<rect x="{left + token * wide}" y="{y + 3}" width="{wide - 4}" height="{high - 14}" rx="3" {look}/>'
            )
        x = left + bar.known * wide + 8
        parts.append(f'<text x="{x}" y="{y + 20}">{bar.known} known, n = {bar.computed}</text>')
    keys = (("#cfe3f2", "stored before"), ("#CC79A7", "found in the cache"), ("#0072B2", "computed in this step"))
    for i, (fill, text) in enumerate((*keys, ("#fff", "still behind"))):
        x, y = 14 + i * 175, height - 26
        parts.append(f'<rect x="{x}" y="{y}" width="16" height="14" rx="3" fill="{fill}" stroke="#999"/>')
        parts.append(f'<text x="{x + 23}" y="{y + 12}">{text}</text>')
    return "\n".join([*parts, "</svg>"])


# The bug hunt --------------------------------------------------------------------------------------------------------

STORY = (
    "Once upon a time there was a gentle bear named Ruby who lived in a hollow tree. Ruby wanted to learn to swim. One windy "
    "day, Ruby saw a wooden whistle lying in an empty barn. She put it in her bag. On the way home she met an old hamster who "
    'was running from a wolf. "I have a wooden whistle!" said Ruby. Ruby blew the whistle so'
)
URGENT = "Long ago, a little bear named Ruby lived in a hollow tree. Ruby wanted to learn to swim. One"


class Verdict(NamedTuple):
    """What the bug hunt saw of a request: its text, the one that it gets alone, and what it found when it resumed."""

    id: str
    text: str
    alone: str
    found: int


def hunt_config(**options: Any) -> Config:
    limits: dict[str, Any] = dict(max_num_batched_tokens=24, max_num_seqs=4, num_blocks=23, block_size=4, watermark=0)
    limits |= dict(long_prefill_token_threshold=16, prefix_caching=True, policy="priority", admission="full_prompt")
    return Config(**{**limits, **options})


def hunt_requests(model: Any) -> list[Request]:
    """L, a long prompt that nobody is in a hurry for, and H, an urgent one that arrives a step later."""
    end = frozenset([model.eos_id])
    return [
        Request("L", model.encode(STORY), 12, 0, 5, end),
        Request("H", model.encode(URGENT), 10, 1, 0, end),
    ]


def hunt(make: Callable[[Config], Any]) -> list[Verdict]:
    """Run both behind a real model, whose KV lies in the blocks that the scheduler hands out. Needs NumPy."""
    from s06_paged_attention import PagedRunner

    from kit.stories import DTYPE, alone
    from kit.tinylm import TinyLM

    model, config = TinyLM.load(dtype=DTYPE), hunt_config()
    requests = hunt_requests(model)
    found: dict[Request, int] = {}
    for batch in drive(make(config), requests, PagedRunner(model, config.num_blocks, config.block_size)):
        found.update({request: batch.hits[request] for request in batch.resumed})
    lone = {request: model.decode(alone(model, request.prompt, request.max_tokens)) for request in requests}
    return [Verdict(one.id, model.decode(one.output), lone[one], found.get(one, 0)) for one in requests]


def bug_hunt() -> None:
    """What the two users read, with and without `safe`."""
    from s14_unified_scheduler import UnifiedScheduler

    rows = []
    for safe in (False, True):
        for verdict in hunt(lambda config, safe=safe: UnifiedScheduler(config, safe)):  # type: ignore[misc]
            same = "yes" if verdict.text == verdict.alone else "NO"
            rows.append((f"safe={safe}", verdict.id, verdict.found, same, f"…{verdict.text}"))
    print(table(("", "request", "found on return", "as alone", "what its user reads"), rows))


def hunt_steps() -> None:
    """The steps around the eviction, without `safe`."""
    from s06_paged_attention import PagedRunner
    from s14_unified_scheduler import UnifiedScheduler

    from kit.stories import DTYPE
    from kit.tinylm import TinyLM

    model, config = TinyLM.load(dtype=DTYPE), hunt_config()
    runner = PagedRunner(model, config.num_blocks, config.block_size)
    lines = show(UnifiedScheduler(config), hunt_requests(model), runner).splitlines()
    print("\n".join([*lines[:6], "     …", *lines[14:17]]))


# What the safe mode changes ------------------------------------------------------------------------------------------


def recorded() -> list[dict[str, Any]]:
    """The recorded workloads of vLLM (tests/data/vllm)."""
    with gzip.open(TRACES, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def requests_of(workload: dict[str, Any]) -> list[Request]:
    return [
        Request(
            one["id"],
            one["prompt"],
            one["max_tokens"],
            one["arrival"],
            one.get("priority", 0),
            frozenset(one.get("stop_token_ids", ())),
        )
        for one in workload["requests"]
    ]


class Decisions(NamedTuple):
    """Of a run: per step what was computed, what was found at admission, who was evicted; and the outputs."""

    computed: list[list[tuple[str, int]]]
    found: list[list[tuple[str, int]]]
    evicted: list[list[str]]
    outputs: list[list[int]]

    @property
    def hit_tokens(self) -> int:
        return sum(n for step in self.found for _, n in step)

    @property
    def computed_tokens(self) -> int:
        return sum(n for step in self.computed for _, n in step)


def decide(scheduler: Any, requests: list[Request]) -> Decisions:
    seen = Decisions([], [], [], [])
    for batch in drive(scheduler, requests):
        seen.computed.append([(request.id, n) for request, n in batch.tokens.items()])
        seen.found.append([(request.id, n) for request, n in batch.hits.items()])
        seen.evicted.append([request.id for request in batch.preempted])
    return seen._replace(outputs=[list(request.output) for request in requests])


def safe_mode() -> None:
    """In how many recorded workloads the safe mode decides otherwise, and what it costs."""
    from s14_unified_scheduler import UnifiedScheduler

    changed: Counter[str] = Counter()
    totals, workloads = {False: [0, 0, 0], True: [0, 0, 0]}, recorded()
    cached = [w for w in workloads if w["config"]["enable_prefix_caching"]]
    for workload in cached:
        config = Config.from_dict(translate({**workload["config"], "allow_small_budget": True}, "s14"))
        both = {safe: decide(UnifiedScheduler(config, safe), requests_of(workload)) for safe in (False, True)}
        for part in Decisions._fields:
            changed[part] += getattr(both[False], part) != getattr(both[True], part)
        changed["any"] += both[False] != both[True]
        for safe, seen in both.items():
            numbers = (seen.hit_tokens, seen.computed_tokens, len(seen.computed))
            totals[safe] = [a + b for a, b in zip(totals[safe], numbers)]
    print(f"{len(workloads)} recorded workloads, {len(cached)} of them with prefix caching; decided otherwise when safe:\n"
          f"{changed['any']} workloads (tokens of a step in {changed['computed']}, hits in {changed['found']}, evictions in "
          f"{changed['evicted']}, outputs in {changed['outputs']})\n")  # fmt: skip
    rows = [(f"safe={safe}", *numbers) for safe, numbers in totals.items()]
    print(table(("", "tokens found", "tokens computed", "steps"), rows))


# How near a scheduler is to vLLM's --------------------------------------------------------------------------------------


def agrees(make: Callable[[Config], Any], workload: dict[str, Any]) -> bool:
    """Whether a scheduler computes the same tokens in every step and evicts the same requests as vLLM did."""
    config = Config.from_dict(translate({**workload["config"], "allow_small_budget": True}, "s14"))
    recorded = {row["step"]: row for row in workload["trace"]["steps"]}
    want = [([tuple(pair) for pair in row.get("sched", [])], row.get("pre", [])) for row in recorded.values()]
    got = []
    try:
        for step, batch in enumerate(drive(make(config), requests_of(workload))):
            if step in recorded or batch.tokens:
                got.append(([(one.id, n) for one, n in batch.tokens.items()], [one.id for one in batch.preempted]))
            if got != want[: len(got)]:
                return False
    except Exception:  # a rule that is wrong enough ends in an error: that is no agreement either
        return False
    return len(got) == len(want)


def how_near() -> None:
    """Earlier schedulers on the recorded workloads."""
    from s10_scheduler import Scheduler
    from s11_chunked_prefill import ChunkedScheduler
    from s14_unified_scheduler import UnifiedScheduler

    workloads = recorded()
    plain = [w for w in workloads if not w["config"]["enable_prefix_caching"]]
    rows = []
    for name, make in (("s10", Scheduler), ("s11", ChunkedScheduler), ("s14", UnifiedScheduler)):
        same = {id(w) for w in workloads if agrees(make, w)}
        rows.append((name, sum(id(w) in same for w in plain), len(same)))
    headers = ("scheduler", f"of {len(plain)} without a cache", f"of all {len(workloads)}")
    print("Workloads in which every step computes what vLLM's did, and evicts whom it evicted:\n")
    print(table(headers, rows))


def one_rule_changed() -> None:
    """How many recorded workloads notice each of the course's wrong answers."""
    import s14_unified_scheduler as s14

    workloads, rows = recorded(), []
    for path in sorted((TRACES.parents[3] / "checks/wrong_answers/s14_unified_scheduler").glob("*.py")):
        changed: dict[str, Any] = dict(vars(s14))
        exec(compile(path.read_text("utf-8"), str(path), "exec"), changed)
        wrong = changed["UnifiedScheduler"]
        if wrong is not s14.UnifiedScheduler:
            members = {name: member for name, member in vars(wrong).items() if callable(member)}
            make = type("Changed", (s14.UnifiedScheduler,), members)
            rows.append((path.stem, sum(not agrees(make, w) for w in workloads)))
    print(table(("one rule changed", f"noticed by, of {len(workloads)}"), sorted(rows, key=lambda row: -row[1])))


# Who is next, with a cache -------------------------------------------------------------------------------------------


def questions(documents: int = 12, each: int = 12, length: int = 256, seed: int = 14) -> list[Request]:
    """About `each` questions about every one of `documents` texts of `length` tokens, shuffled, all there at once.

    Every sixteenth request is a stranger's in place of a question: a prompt of its own, nothing of which is ever cached.
    """
    rng = Random(seed)
    texts = [[rng.randrange(50_000) for _ in range(length)] for _ in range(documents)]
    asked = [text for text in texts for _ in range(each)]
    rng.shuffle(asked)
    requests = []
    for i, text in enumerate(asked):
        own = [rng.randrange(50_000) for _ in range(16)]
        if i % 16 == 8:
            own, text = [rng.randrange(50_000) for _ in range(length)], []
        requests.append(Request(f"{'s' if not text else 'q'}{i}", [*text, *own], 16))
    return requests


class Served(NamedTuple):
    """A run of `questions`. Times are modelled, in seconds."""

    hit: float  # share of the prompts' tokens that was found in the cache
    computed: int  # tokens
    seconds: float
    passed: int  # the most younger requests that passed somebody
    questions: float  # time to first token, on average
    strangers: float


def serve(scheduler: Any, requests: list[Request]) -> Served:
    from s03_step_cost import A100_LLAMA3_8B as cost

    first: dict[Request, float] = {}
    joined: list[Request] = []
    found = computed = 0
    now = 0.0
    for batch in drive(scheduler, requests):
        now += cost.step_ns(sum(batch.tokens.values()), sum(one.num_computed_tokens for one in batch.tokens)) / 1e9
        found += sum(batch.hits.values())
        computed += sum(batch.tokens.values())
        joined += batch.admitted
        for request in batch.tokens:
            if request.output:
                first.setdefault(request, now)
    place = {request: i for i, request in enumerate(joined)}
    passed = max(sum(place[other] < place[one] for other in requests[i + 1 :]) for i, one in enumerate(requests))
    means = []
    for kind in "qs":
        times = [first[one] for one in requests if one.id.startswith(kind)]
        means.append(sum(times) / len(times))
    return Served(found / sum(len(one.prompt) for one in requests), computed, now, passed, *means)


def order_config(**options: Any) -> Config:
    """A pool with room for six of the twelve documents, and four seats."""
    limits: dict[str, Any] = dict(max_num_batched_tokens=512, max_num_seqs=4, num_blocks=96, block_size=16, watermark=0)
    return Config(**{**limits, "prefix_caching": True, "admission": "full_prompt", **options})


def orders() -> None:
    """The same requests in three orders: hits, steps, and who was passed how often."""
    from s14_unified_scheduler import LongestPrefixFirst, UnifiedScheduler

    rows = []
    for name, patience in (("first come", None), ("patience 8", 8), ("patience 32", 32), ("no patience", float("inf"))):
        scheduler = UnifiedScheduler(order_config())
        if patience is not None:
            scheduler.waiting = LongestPrefixFirst(scheduler, patience)
        got = serve(scheduler, questions())
        rows.append((name, f"{got.hit:.0%}", got.computed, got.seconds, got.passed, got.questions, got.strangers))
    print(table(("order", "hit", "computed", "seconds", "passed by", "first token s: questions", "strangers"), rows))
    print("\nThe seconds are modelled: A100, Llama-3-8B.")


# Messages ------------------------------------------------------------------------------------------------------------


def messages() -> None:
    """What a worker is told in each kind of step, and what the whole state would take in its place."""
    from s14_unified_scheduler import UnifiedScheduler

    scheduler, worker = UnifiedScheduler(Config(prefix_caching=True)), Worker()
    requests = [Request(f"r{i}", [1000 + i, *range(1023)], 40, i) for i in range(16)]
    rows = []
    for number, batch in enumerate(drive(scheduler, requests, worker), 1):
        if number in (1, 16, 17, 20, 30):
            whole = {name: [one.tokens, one.blocks, one.num_computed_tokens] for name, one in worker.requests.items()}
            size = len(json.dumps(whole, separators=(",", ":")))
            rows.append((number, len(batch.new), len(batch.known), len(message(batch)), size))
    print(table(("step", "new", "known", "bytes of the message", "bytes of the whole state"), rows))


TABLES = {
    f.__name__: f for f in (unified_example, how_near, one_rule_changed, bug_hunt, safe_mode, orders, messages, hunt_steps)
}

"""The main job of s10: four incidents, each a load, a table and what to read off it; and the cure that s11 brings."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kit import options, traces
from kit.config import Config
from kit.errors import BadConfig
from kit.exercise import graft
from kit.experiments import label
from kit.report import Report, done, heading, table, whole
from kit.request import Request

LESSON = "s10_scheduler"
SHOWN = 10  # refusals that are printed with their sentence
TRACE_BUDGET = 16_384  # without chunking, the longest prompt of a trace has to fit into one step


def main(argv: Sequence[str] | None, scheduler: Any, engine: Any) -> int:
    """Parse the command line and run what it asks for; returns the exit code."""
    return options.run(lambda: _run(options.parse(LESSON, argv), scheduler, engine))


def _run(args: argparse.Namespace, scheduler: Any, engine: Any) -> int:
    def simulate(requests: Sequence[Request], config: Config, **attributes: Any) -> Report:
        """Run a load to its end, the scheduler's extensions set by name."""
        subject = scheduler(config)
        for name, value in attributes.items():
            setattr(subject, name, value)
        return engine(subject, None, requests).run()

    if args.replay:
        from kit import replay

        return replay.replay_file(args.replay, scheduler, LESSON)
    if args.model:
        from kit import stories

        return stories.tell(args, scheduler, engine)
    if args.trace:
        result = run_trace(args, scheduler, engine)
    elif any((args.budget, args.blocks, args.policy, args.config)) or args.mystery:
        result = _one_load(args, simulate, sys.modules[scheduler.__module__].__dict__)
    else:
        meter = sys.modules[scheduler.__module__].ThrashMeter
        print(f"Every millisecond below is {label()}. Percentiles are nearest-rank.")
        result = {
            "a_queue_that_looks_healthy": a_queue_that_looks_healthy(simulate),
            "who_pays_for_a_policy": who_pays_for_a_policy(simulate),
            "two_budgets": two_budgets(simulate),
            "thrash": thrash(simulate, meter),
            "the_same_sixty_in_chunks": the_same_sixty_in_chunks(simulate, engine),
        }
    options.json_out(args, result)
    return 0


def _heading(text: str) -> None:
    heading(text)
    print(f"({label()})\n")


def _say(text: str) -> None:
    """A paragraph, wrapped for a terminal."""
    print(textwrap.fill(text, 110) + "\n")


# 1 ------------------------------------------------------------------------------------------------------------------


def a_queue_that_looks_healthy(simulate: Callable[..., Report]) -> dict[str, Any]:
    """Story A: five prompts that no step can hold, and everybody behind the first of them."""
    _heading("1. A queue that looks healthy")
    base: dict[str, Any] = {"max_num_batched_tokens": 512, "max_num_seqs": 64, "num_blocks": 2000}
    unchecked = Config(**base, reject_unservable=False)
    report = simulate(traces.story_a(), unchecked)
    stuck = report.unfinished
    blocker = stuck[0]
    beyond = [request for request in stuck if len(request.prompt) > unchecked.max_num_batched_tokens]
    _say(
        f"60 requests, token budget {unchecked.max_num_batched_tokens}, {unchecked.num_blocks:,} KV blocks, first come first "
        "served. This engine runs with reject_unservable=False: it does not check at `add` what can never finish."
    )
    _say(
        f"What the dashboard shows: TTFT p50 {report.ttft_ms(50):.0f} ms, p99 {report.ttft_ms(99):.0f} ms; gap between tokens "
        f"p99 {report.itl_ms(99):.0f} ms; preemptions {report.preemptions}; errors {len(report.errors)}. What it doesn't show: "
        f"{len(report.finished)} requests finished and {len(stuck)} never ran. Every percentile is one of the survivors'."
    )
    _say(
        f"At the head stands {blocker.id}: it {report.head}. No step is ever larger, so it waits for ever, and with it "
        f"{len(stuck) - 1} others: {len(beyond) - 1} that are too long as well, {len(stuck) - len(beyond)} of which each would fit."
    )
    cures: list[tuple[str, Report]] = [("as it is", report)]
    for name, change in (("ten times the pool", {"num_blocks": 20_000}), ("shortest first", {"policy": "shortest"}),
                         ("by priority (index mod 3)", {"policy": "priority"})):  # fmt: skip
        cures.append((name, simulate(traces.story_a(), Config(**{**base, **change}, reject_unservable=False))))
    checked = done(simulate(traces.story_a(), Config(**base)))
    cures.append(("checked at add", checked))
    rows = [(name, len(r.finished), len(r.unfinished), len(r.refused), r.ttft_ms(50), r.ttft_ms(99)) for name, r in cures]
    print(table(("", "finished", "never ran", "refused", "TTFT p50 ms", "p99 ms"), rows))
    _, error = checked.refused[0]
    print()
    _say(
        "No block was ever missing, so a bigger pool changes nothing. Another order moves the long ones, and whoever stands "
        "behind them, but runs none of them. The check at `add` tells their senders at once, and everybody else finishes:"
    )
    print(f"  {error}\n")
    _say("Computing such a prompt in pieces is the real cure: that is s11.")
    return {"rows": [dict(zip(("run", "finished", "never_ran", "refused", "ttft_p50_ms", "ttft_p99_ms"), row)) for row in rows],
            "blocker": blocker.id, "refused": [request.id for request, _ in checked.refused]}  # fmt: skip


# 2 ------------------------------------------------------------------------------------------------------------------


def who_pays_for_a_policy(simulate: Callable[..., Report]) -> dict[str, Any]:
    """Story C: the same load under three orders, TTFT by class of prompt."""
    _heading("2. Who pays for a policy")
    config: dict[str, Any] = {"max_num_batched_tokens": 2304, "max_num_seqs": 32, "num_blocks": 4000}
    _say(
        "Four of five prompts are short (32-256 tokens), one is long (1,000-1,900). Budget 2,304, 32 seats, a pool that never "
        "runs out. `priority` puts the short class first; inside a class it is first come first served. TTFT in seconds."
    )
    data = {}
    for load, requests in (
        ("burst of 200", lambda: traces.story_c(200)),
        ("1,000 at 15/s", lambda: traces.story_c(1000, rate=15.0)),
    ):
        rows = []
        for policy in ("fcfs", "shortest", "priority"):
            report = done(simulate(requests(), Config(**config, policy=policy)))
            row = [load, policy]
            for which in (lambda row: True, lambda row: row.prompt_tokens <= 256, lambda row: row.prompt_tokens > 256):
                row += [f"{report.ttft_ms(p, which) / 1e3:.2f}" for p in (50, 99, 100)]
            rows.append(row)
        data[load] = [dict(zip(_POLICY_COLUMNS, row[1:])) for row in rows]
        print(table(("load", "policy", "all p50", "p99", "max", "short p50", "p99", "max", "long p50", "p99", "max"), rows))
        print()
    _say(
        "Read a row across: who gained, who paid, at the median and in the tail. Which row is right depends on your users."
    )
    return data


_POLICY_COLUMNS = ("policy", *(f"{c}_{p}_s" for c in ("all", "short", "long") for p in ("p50", "p99", "max")))


# 3 ------------------------------------------------------------------------------------------------------------------


def two_budgets(simulate: Callable[..., Report]) -> dict[str, Any]:
    """Story D in kind, whole prompts: token budget x KV pool on a load that fits every combination."""
    _heading("3. Two budgets")
    _say(
        "A burst of 200: four of five prompts 16-160 tokens, one 400-850; outputs 16-96. 256 seats, first come first served. "
        "The last two columns: in how many steps the head of the queue waited for tokens of the budget, or for blocks."
    )
    columns = ("blocks", "budget", *_COLUMNS, "wait: budget", "blocks")
    rows = []
    for blocks in (100, 400, 4000):
        for budget in (1024, 2048, 4096):
            config = Config(max_num_batched_tokens=budget, max_num_seqs=256, num_blocks=blocks)
            report = done(simulate(traces.story_d(200), config))
            waits = [f"{100 * report.head_waits.get(rule, 0) / report.num_steps:.0f}%" for rule in ("budget", "blocks")]
            rows.append((blocks, budget, *_headline(report), *waits))
    print(table(columns, rows) + "\n")
    small, ample = rows[:3], rows[-3:]
    _say(
        f"In the pool of {small[0][0]} the head waits for blocks in {small[0][-1]} of the steps: from budget {small[0][1]:,} to "
        f"{small[-1][1]:,} throughput goes from {small[0][2]} to {small[-1][2]} tokens/s. In the pool of {ample[0][0]:,} nobody "
        f"waits for a block: there it goes from {ample[0][2]:,} to {ample[-1][2]:,}, and the longest gap from {ample[0][7]} to "
        f"{ample[-1][7]} ms, for a larger step is a longer step."
    )
    return {"rows": [dict(zip((*columns[:-1], "wait: blocks"), row)) for row in rows]}


_COLUMNS = ("tokens/s", "TTFT p50", "p99 ms", "gap p50", "p99", "longest ms", "evictions", "rec/new")


def _headline(report: Report) -> tuple[Any, ...]:
    return (
        round(report.tokens_per_s),
        whole(report.ttft_ms(50)),
        whole(report.ttft_ms(99)),
        report.itl_ms(50),
        report.itl_ms(99),
        round(report.longest_gap_ms),
        report.preemptions,
        f"{100 * report.rec_new:.1f}%",
    )


# 4 ------------------------------------------------------------------------------------------------------------------


def thrash(simulate: Callable[..., Report], meter: Any) -> dict[str, Any]:
    """A load that fits, in pools that get too small for it."""
    _heading("4. Thrash")
    _say("500 small requests (prompt 16-160, output 16-96) at 25/s, budget 1,024, 256 seats. Every one of them fits.")
    columns = ("blocks", "", *_COLUMNS)
    detectors: dict[str, Detector] = {}

    def run(blocks: int, name: str = "", seats: int = 256, hold_back: bool = False) -> tuple[Any, ...]:
        detector = detectors[f"{blocks} {name}"] = Detector(meter(), hold_back)
        config = Config(max_num_batched_tokens=1024, max_num_seqs=seats, num_blocks=blocks)
        report = done(simulate(traces.story_d(500, rate=25.0), config, meter=detector))
        detector.most_running = max(report.num_running)
        return (blocks, name, *_headline(report))

    rows = [run(blocks) for blocks in (400, 240, 180, 140, 100, 60)]
    print(table(columns, rows) + "\n")
    fits, tight = rows[1], rows[2]
    _say(
        f"From {fits[0]} blocks to {tight[0]}: evictions {fits[8]} to {tight[8]}, TTFT p99 {fits[4]} to {tight[4]} ms, longest "
        f"pause in an answer {fits[7]} to {tight[7]} ms; throughput {fits[2]:,} to {tight[2]:,} tokens/s. Thrash costs pauses "
        "before it costs throughput: a token computed again mostly rides in a step that had to be paid for anyway."
    )
    _say(f"The detector at 100 blocks: {detectors['100 '].message(100, 256)} What each of the ways out buys:")
    cures = [rows[4], run(100, "back-pressure", hold_back=True), run(100, "10 seats", seats=10), run(200, "200 blocks")]
    print(table(columns, cures))
    return {"rows": [dict(zip(("blocks", "change", *_COLUMNS), row)) for row in (*rows, *cures[1:])]}


class Detector:
    """A ThrashMeter that counts its alarms; with `hold_back` False it watches and holds nobody back."""

    def __init__(self, meter: Any, hold_back: bool):
        self.meter, self.hold_back = meter, hold_back
        self.steps = self.alarms = self.most_running = 0

    @property
    def thrashing(self) -> bool:
        return self.hold_back and self.meter.thrashing

    def observe(self, thrown_away: int, computed: int) -> bool:
        thrashing = self.meter.observe(thrown_away, computed)
        self.steps += 1
        self.alarms += thrashing
        return thrashing

    def message(self, blocks: int, seats: int) -> str:
        return (
            f"thrashing in {100 * self.alarms / self.steps:.0f} % of the steps (on above {100 * self.meter.high:.0f} tokens thrown "
            f"away for 100 new ones over {self.meter.steps.maxlen} steps, off at {100 * self.meter.low:.0f}). Up to "
            f"{self.most_running} requests ran together, more than {blocks} blocks hold to the end: add blocks, or lower "
            f"max_num_seqs from {seats}."
        )


# 5 ------------------------------------------------------------------------------------------------------------------


def the_same_sixty_in_chunks(simulate: Callable[..., Report], engine: Any) -> dict[str, Any]:
    """Story A once more, with the scheduler of the next lesson, which computes a prompt in pieces."""
    from s11_chunked_prefill import ChunkedScheduler

    _heading("5. The same sixty, in chunks")
    _say(
        "The sixty requests of part 1, the same budget of 512 and the same pool, nothing refused. s11's scheduler computes as "
        "much of a prompt as the step has room for, and the rest in the next."
    )
    config = Config(max_num_batched_tokens=512, max_num_seqs=64, num_blocks=2000, reject_unservable=False)
    runs = {
        "whole prompts (s10)": simulate(traces.story_a(), config),
        "in chunks (s11)": done(engine(ChunkedScheduler(config), None, traces.story_a()).run()),
    }
    columns = ("", "finished", "never ran", *_COLUMNS)
    rows = [(name, len(r.finished), len(r.unfinished), *_headline(r)) for name, r in runs.items()]
    print(table(columns, rows))
    return {"rows": [dict(zip(("run", *columns[1:]), row)) for row in rows]}


# One load of the user's choice ----------------------------------------------------------------------------------------


def mystery(letter: str, lesson: str = LESSON) -> Path:
    """The wrong answer behind a letter. BadConfig if the lesson has none."""
    folder = Path(__file__).resolve().parents[2] / "checks" / "wrong_answers" / lesson
    for path in sorted(folder.glob("*.py")):
        if f'MYSTERY = "{letter}"' in path.read_text("utf-8"):
            return path
    raise BadConfig(f"no mystery scheduler {letter} in {folder}")


def _one_load(args: argparse.Namespace, simulate: Callable[..., Report], lesson: dict[str, Any]) -> dict[str, Any]:
    """Under the user's own limits: story B's twenty requests, or a mystery beside the scheduler it was made from."""
    if not args.mystery:
        config = options.config_from(args, max_num_seqs=64, num_blocks=180)
        report = simulate(_with_priorities(traces.story_b()), config)
        print_summary("Story B: twenty requests, priorities 0, 1, 2 in turn", config, report)
        return report.to_json()
    config = options.config_from(args, max_num_seqs=64, num_blocks=2000)
    right = simulate(_with_priorities(traces.story_e()), config)
    graft(mystery(args.mystery), lesson)
    wrong = simulate(_with_priorities(traces.story_e()), config)
    print(f"Mystery {args.mystery}: something in it is wrong. Find the limits that show what.\n")
    print_limits("A burst of sixty (prompts 50-300, outputs 50-200), priorities 0, 1, 2 in turn", config)
    rows = [
        (name, len(r.finished), *_headline(r)) for name, r in (("as it was", right), (f"mystery {args.mystery}", wrong))
    ]
    print(table(("scheduler", "finished", *_COLUMNS), rows))
    if wrong.diagnosis:
        print(f"\nmystery {args.mystery} is {wrong.end}: {wrong.diagnosis}")
    return {"as_it_was": right.to_json(), "mystery": wrong.to_json()}


def _with_priorities(requests: list[Request]) -> list[Request]:
    for i, request in enumerate(requests):
        request.priority = i % 3
    return requests


def run_trace(args: argparse.Namespace, scheduler: Any, engine: Any, budget: int = TRACE_BUDGET) -> dict[str, Any]:
    """A real trace through the scheduler, refusals counted and named."""
    requests = traces.read_csv(args.trace)
    config = options.config_from(args, max_num_batched_tokens=budget, max_num_seqs=64)
    loop = engine(scheduler(config), None, requests)
    with options.Progress(Path(args.trace).name, len(requests)) as progress:
        report = loop.run(watch=lambda: progress.update(len(loop.report.rows)))
    print_summary(f"{Path(args.trace).name}: {len(requests):,} requests", config, report)
    return report.to_json()


def print_limits(title: str, config: Config) -> None:
    print(f"{title}; milliseconds {label()}")
    print(
        f"budget {config.max_num_batched_tokens:,}, {config.max_num_seqs} seats, {config.num_blocks:,} blocks of "
        f"{config.block_size} ({config.watermark_blocks} kept back), {config.policy}\n"
    )


def print_summary(title: str, config: Config, report: Report) -> None:
    """The headline of one run, refusals by name and number."""
    print_limits(title, config)
    print(table(("finished", "never ran", "refused", "steps", "virtual s"),
                [(len(report.finished), len(report.unfinished), len(report.refused), report.num_steps, report.duration_s)]))  # fmt: skip
    print()
    print(
        table(
            ("tokens/s", "TTFT p50", "p99 ms", "gap p50", "p99", "longest ms", "evictions", "rec/new"), [_headline(report)]
        )
    )
    if report.diagnosis:
        print(f"\n{report.end}: {report.diagnosis}")
    print_refused(report)


def print_refused(report: Report) -> None:
    """Who was turned away, by reason and, of the first, by name."""
    if report.refused:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in report.summary()["refused"].items())
        print(f"\nrefused at add: {reasons}")
        for _, error in report.refused[:SHOWN]:
            print(f"  {error}")
        if len(report.refused) > SHOWN:
            print(f"  … and {len(report.refused) - SHOWN:,} more; --json FILE names all")

"""What s11 shows when it runs: five loads under several limits, and what to read off each table."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from kit import incidents, options, traces
from kit.config import Config
from kit.exercise import graft
from kit.experiments import label
from kit.report import Report, done, heading, percentile, table
from kit.request import Count, Request
from kit.runner import sampling

LESSON = "s11_chunked_prefill"
BUDGETS = (64, 128, 256, 512, 1024, 2048)
WHOLE = 16_384  # a budget that cuts no prompt
SEEDS = range(1, 6)
MYSTERY_BUDGET = 8_192  # so large that a mystery looks healthy


def main(argv: Sequence[str] | None, scheduler: Any, engine: Any, longest_gap: Callable) -> int:
    """Parse the command line and run what it asks for; returns the exit code."""
    return options.run(lambda: _run(options.parse(LESSON, argv), Bench(scheduler, engine, longest_gap)))


class Bench:
    """The lesson's pieces, and runs of loads through them."""

    def __init__(self, scheduler: Any, engine: Any, longest_gap: Callable):
        self.scheduler, self.engine, self.longest_gap = scheduler, engine, longest_gap

    def simulate(self, requests: Iterable[Request], scheduler: Any = None, **limits: Any) -> Report:
        """Run a load to its end under these limits. NotDone if it has none."""
        return done(self.engine((scheduler or self.scheduler)(Config(**limits)), None, requests).run())

    def logged(self, requests: Iterable[Request], **limits: Any) -> tuple[Report, list[tuple[int, list[str]]]]:
        """The same, with the log that `longest_gap` reads."""
        loop = self.engine(self.scheduler(Config(**limits)), None, requests)
        log: list[tuple[int, list[str]]] = []
        execute = loop.runner.execute

        def watched(batch: Any) -> Any:
            log.append((sum(batch.tokens.values()), [request.id for request in sampling(batch)]))
            return execute(batch)

        loop.runner.execute = watched
        return done(loop.run()), log


def _run(args: argparse.Namespace, bench: Bench) -> int:
    if args.replay:
        from kit import replay

        return replay.replay_file(args.replay, bench.scheduler, LESSON)
    if args.model:
        from kit import stories

        return stories.tell(args, bench.scheduler, bench.engine)
    if args.trace:
        result = incidents.run_trace(args, bench.scheduler, bench.engine, budget=512)
    elif any((args.budget, args.blocks, args.policy, args.config, args.mystery)):
        result = _one_load(args, bench)
    else:
        print(f"Every millisecond below is {label()}. Percentiles are nearest-rank.")
        result = {
            "the_spike": the_spike(bench),
            "sixty_requests": sixty_requests(bench),
            "a_short_one_passes": a_short_one_passes(bench),
            "two_techniques": two_techniques(bench),
            "who_may_join": who_may_join(bench),
        }
    options.json_out(args, result)
    return 0


def _say(text: str) -> None:
    """A paragraph, wrapped for a terminal."""
    print(textwrap.fill(text, 110, break_on_hyphens=False) + "\n")


def _named(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    return {"rows": [dict(zip(columns, row, strict=True)) for row in rows]}


def _request(name: str, prompt: int, outputs: int, arrival_ms: int = 0) -> Request:
    return Request(name, range(prompt), outputs, arrival_ms * 1_000_000, output=Count())


# 1 ------------------------------------------------------------------------------------------------------------------


def spike_load() -> list[Request]:
    """Four in mid-answer, and a prompt of 2,048 that comes along."""
    return [*(_request(f"d{i}", 16, 12) for i in range(4)), _request("L", 2048, 2, 50)]


def the_spike(bench: Bench) -> dict[str, Any]:
    """One long prompt among decodes: chunked or not, mixed or not."""
    heading("1. The spike")
    _say(
        "Four requests are in mid-answer when a prompt of 2,048 arrives. Longest gap: the most work between two tokens of one "
        "of the four, counted in tokens computed, and as time. L's first token: the time to it."
    )
    columns = ("prompts", "steps", "budget", "longest gap, tokens", "ms", "L's first token, ms")
    rows: list[tuple[Any, ...]] = []
    for prompts, steps, budget, change in (
        ("whole", "mixed", 4096, {"chunked_prefill": False}),
        ("whole", "prompts first", 4096, {"chunked_prefill": False, "prefill_first": True}),
        ("chunked", "prompts first", 512, {"prefill_first": True}),
        ("chunked", "mixed", 512, {}),
        ("chunked", "mixed", 128, {}),
    ):
        report, log = bench.logged(spike_load(), max_num_batched_tokens=budget, max_num_seqs=8, num_blocks=1000, **change)
        gaps = bench.longest_gap(log)
        four = [row for row in report.rows if row.id != "L"]
        gap_ms = max(row.longest_gap_ns for row in four) / 1e6
        rows.append((prompts, steps, budget, max(gaps[row.id] for row in four), gap_ms,
                     next(row.ttft_ms for row in report.rows if row.id == "L")))  # fmt: skip
    print(table(columns, rows) + "\n")
    whole, unmixed, mixed, fine = rows[0], rows[2], rows[3], rows[4]
    _say(
        f"In chunks that share their steps with the decodes, the gap is the budget: {mixed[3]:,} tokens in place of "
        f"{whole[3]:,}. Chunks alone are no cure: with prompts first the four wait for all of them, {unmixed[3]:,} tokens. "
        f"Who pays is L: its first token comes after {mixed[5]:.0f} ms in place of {whole[5]:.0f}, and after {fine[5]:.0f} "
        f"at a budget of {fine[2]}."
    )
    return _named(columns, rows)


# 2 ------------------------------------------------------------------------------------------------------------------


def sixty_requests(bench: Bench) -> dict[str, Any]:
    """Story A, which left 46 of 60 behind a head too long for any step, at six budgets."""
    heading("2. Sixty requests at six budgets")
    _say("s10's sixty requests, 50 a second, five of them longer than its budget of 512. 2,000 blocks, 64 seats.")
    columns = ("budget", "finished", "TTFT p50 ms", "p99 ms", "gap p50", "gap p99 ms", "tokens/s", "of the best", "steps")
    reports = [
        bench.simulate(traces.story_a(), max_num_batched_tokens=budget, max_num_seqs=64, num_blocks=2000)
        for budget in BUDGETS
    ]
    best = max(report.tokens_per_s for report in reports)
    rows = [
        (budget, len(r.finished), r.ttft_ms(50), r.ttft_ms(99), r.itl_ms(50), r.itl_ms(99), round(r.tokens_per_s),
         f"{100 * r.tokens_per_s / best:.0f}%", r.num_steps) for budget, r in zip(BUDGETS, reports, strict=True)
    ]  # fmt: skip
    print(table(columns, rows) + "\n")
    small, top, last = rows[0], max(rows, key=lambda row: row[6]), rows[-1]
    _say(
        f"{min(row[1] for row in rows)} of 60 finish at every budget. The price of small chunks: {small[0]} makes {small[6]:,} "
        f"tokens/s, {100 * (1 - small[6] / top[6]):.0f} % less than {top[0]}, for {small[8]} steps each pay the floor of a step. "
        f"The price of large ones: from {top[0]} to {last[0]:,} the p99 gap goes from {top[5]:.0f} to {last[5]:.0f} ms, and "
        f"throughput from {top[6]:,} to {last[6]:,}."
    )
    _say("What a token costs in a step that computes nothing else, in microseconds:")
    from s03_step_cost import A100_LLAMA3_8B

    costs = [f"{A100_LLAMA3_8B.step_ns(budget, 0) / budget / 1e3:.0f}" for budget in BUDGETS]
    print(table(("tokens in the step", *(f"{budget:,}" for budget in BUDGETS)), [("microseconds each", *costs)]) + "\n")
    _say(
        "The curve is flat from 512 on, and not quite falling: the published profile has steps of its own there (s03). So "
        "whether a budget beyond 512 gains or loses a few percent is a property of that GPU and model."
    )
    return _named(columns, rows)


# 3 ------------------------------------------------------------------------------------------------------------------


def threshold_load() -> list[Request]:
    """A long prompt, and five short ones behind it."""
    return [_request("L", 6000, 4), *(_request(f"s{i}", 60, 20, 30 + 60 * i) for i in range(5))]


def a_short_one_passes(bench: Bench) -> dict[str, Any]:
    """long_prefill_token_threshold: what the cap on one chunk does to those behind it."""
    heading("3. A short one passes a long one")
    _say(
        "A prompt of 6,000 is there first; from 30 ms on five short ones (60 tokens) follow, one every 60 ms. Budget 512, first "
        "come first served: whoever stands in front takes all that is left of a step, unless a threshold caps its chunk."
    )
    columns = ("threshold", "short ones' TTFT p50 ms", "max ms", "L's TTFT ms", "L's TTFT alone")
    rows: list[tuple[Any, ...]] = []
    for threshold in (0, 448, 256, 128):
        limits = {"max_num_batched_tokens": 512, "max_num_seqs": 16, "num_blocks": 2000}
        report = bench.simulate(threshold_load(), **limits, long_prefill_token_threshold=threshold)
        short = [row.ttft_ms for row in report.rows if row.id != "L"]
        of_l = next(row.ttft_ms for row in report.rows if row.id == "L")
        lone = bench.simulate(threshold_load()[:1], **limits, long_prefill_token_threshold=threshold)
        rows.append((threshold or "off", percentile(short, 50), max(short), of_l, lone.ttft_ms(50)))
    print(table(columns, rows) + "\n")
    off, some, most = rows[0], rows[1], rows[3]
    _say(
        f"A threshold of {some[0]} leaves 64 tokens of each step to those behind: their worst wait falls from {off[2]:.0f} to "
        f"{some[2]:.0f} ms, and L's first token moves from {off[3]:.0f} to {some[3]:.0f} ms. At {most[0]} L waits "
        f"{most[3]:.0f} ms, in steps far from full as long as the others are there. Alone, L is not held back: nobody would gain."
    )
    return _named(columns, rows)


# 4 ------------------------------------------------------------------------------------------------------------------


def alternating(scheduler: Any) -> Any:
    """Chunks without mixing as Sarathi-Serve's table has them: a step of prompts, a step of decodes, in turns."""

    from s08_static_batching import Batch

    class Alternating(scheduler):
        prompts_are_next = True

        def schedule(self) -> Batch:
            self.batch: Batch = Batch()
            left, running = self.config.max_num_batched_tokens, list(self.running)
            decodes = [request for request in running if self.decodes(request)]
            if self.prompts_are_next or not decodes:
                left = self.decode_pass(left, [request for request in running if request not in decodes])
                left = self.admit_pass(left)
            self.prompts_are_next = not self.batch.tokens
            if not self.batch.tokens:
                left = self.decode_pass(left, decodes)
            self.batch.budget_left = left
            return self.batch

    return Alternating


PAPER = {"mixed only": (0.53, 0.68), "chunked only, in turns": (1.04, 0.17), "both": (0.76, 0.14)}


def two_techniques(bench: Bench) -> dict[str, Any]:
    """Sarathi-Serve's Table 4 in kind: mixing alone, chunks alone, both."""
    heading("4. Two techniques, apart and together")
    _say(
        "200 requests like Azure's conversations, 7 a second, 128 seats, memory ample. `mixed only`: whole prompts beside the "
        "decodes. `chunked only`: chunks of 512 in steps of their own, prompts first, or in turns: a step of prompts, a step of "
        "decodes, and so on. `both`: chunks that fill 512 beside the decodes. On the right, Sarathi-Serve's Table 4, column "
        "openchat_sharegpt4."
    )
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "mixed only": (None, {"max_num_batched_tokens": WHOLE, "chunked_prefill": False}),
        "chunked only, prompts first": (None, {"max_num_batched_tokens": 512, "prefill_first": True}),
        "chunked only, in turns": (alternating(bench.scheduler), {"max_num_batched_tokens": 512}),
        "both": (None, {"max_num_batched_tokens": 512}),
    }

    def run(name: str, seed: int) -> Report:
        scheduler, change = ways[name]
        load = traces.azure_like("conv", 200, seed, rate=7.0)
        return bench.simulate(load, scheduler, max_num_seqs=128, num_blocks=20_000, **change)

    columns = ("", "TTFT p50 ms", "gap p99 ms", "longest ms", "tokens/s", "paper: TTFT p50 s", "gap p99 s")
    rows: list[tuple[Any, ...]] = []
    for name in ways:
        r = run(name, 1)
        paper = [f"{seconds:.2f}" for seconds in PAPER[name]] if name in PAPER else ["-", "-"]
        rows.append((name, r.ttft_ms(50), r.itl_ms(99), r.longest_gap_ms, round(r.tokens_per_s), *paper))
    print(table(columns, rows) + "\n")
    by_name = {row[0]: row for row in rows}
    mixed, turns, both = (by_name[name] for name in PAPER)
    kept = [0, 0]
    for seed in SEEDS:
        reports = [run(name, seed) for name in PAPER]
        m, t, b = (report.ttft_ms(50) for report in reports)
        kept[0] += m < b < t
        m, t, b = (report.itl_ms(99) for report in reports)
        kept[1] += b < t < m
    _say(
        f"The order is the paper's: of the three that it compares mixing alone has the first token soonest, chunks alone latest; "
        f"both have the smallest gap. It holds for TTFT in {kept[0]} of {len(SEEDS)} seeds, for the gap in {kept[1]}. Not "
        f"reproduced: the seconds (another model, one GPU in place of two, half the budget, another load), and how much later the "
        f"first token comes with both: "
        f"{_more(both[1] / mixed[1])} than with mixing alone, in the paper {_more(PAPER['both'][0] / PAPER['mixed only'][0])}."
    )
    prompts_first = by_name["chunked only, prompts first"]
    _say(
        f"How chunks alone are scheduled matters more than that they are chunks. With prompts first the first token is there "
        f"soonest of all, for no decode has a share in a step as long as a prompt is left; and the gap is {prompts_first[2]:.0f} ms "
        f"at p99, worse than without chunks. In turns it is {turns[2]:.0f}."
    )
    return {**_named(columns, rows), "order_kept": {"ttft": kept[0], "gap": kept[1], "seeds": len(SEEDS)}}


def _more(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f} % later"


# 5 ------------------------------------------------------------------------------------------------------------------


def long_prompts(n: int = 40, rate: float = 3.0, seed: int = 1) -> list[Request]:
    """Prompts of 1,500-3,000 tokens, outputs of 50-200, `rate` a second."""
    rng = Random(seed)
    prompts = [traces.whole(rng, 1500, 3000) for _ in range(n)]
    outputs = [traces.whole(rng, 50, 200) for _ in range(n)]
    arrivals = traces.poisson(n, rate, rng)
    return [Request(f"r{i}", range(prompts[i]), outputs[i], arrivals[i], output=Count()) for i in range(n)]


def counting_victims(scheduler: Any) -> Any:
    """The scheduler, with a count of the victims that had begun to answer."""

    class Counting(scheduler):
        in_mid_answer = 0

        def preempt(self, request: Request) -> int:
            Counting.in_mid_answer += request.num_output_tokens > 0
            return super().preempt(request)

    return Counting


def who_may_join(bench: Bench) -> dict[str, Any]:
    """Admission that asks for the first chunk's blocks, and for those of the whole prompt."""
    heading("5. Who may join")
    _say(
        "40 long prompts (1,500-3,000 tokens, outputs 50-200), 3 a second, budget 512, 64 seats, in pools that hold two of them, "
        "or more. `chunk` admits who has room for a first chunk, `full_prompt` who has room for all that it knows."
    )
    columns = ("blocks", "admission", *incidents._COLUMNS, "ran together")
    rows: list[tuple[Any, ...]] = []
    paused: list[int] = []
    for blocks in (300, 600, 1000, 6000):
        for admission in ("chunk", "full_prompt"):
            limits = {"max_num_batched_tokens": 512, "max_num_seqs": 64, "num_blocks": blocks}
            watched = counting_victims(bench.scheduler)
            r = bench.simulate(long_prompts(), watched, admission=admission, **limits)
            rows.append((blocks, admission, *incidents._headline(r), max(r.num_running)))
            if admission == "chunk":
                paused.append(watched.in_mid_answer)
    print(table(columns, rows) + "\n")
    first, whole = rows[0], rows[1]
    _say(
        f"In the pool of {first[0]} room for a first chunk is soon found, so somebody is let in whose next chunks don't fit, and is "
        f"evicted in mid-prompt: {first[8]} evictions, {first[9]} of the new work done again, {first[2]} tokens/s in place of {whole[2]}. "
        "These repeats don't ride along for free as s10's did: a chunk fills its step. The gate is a check, not a reservation; "
        "that is why it does not prevent every eviction. With memory to spare it changes nothing."
    )
    _say(
        f"The longest gap follows not how many are evicted but whom it hits: with `chunk` and {rows[0][0]}, {rows[2][0]} and "
        f"{rows[4][0]:,} blocks {paused[0]}, {paused[1]} and {paused[2]} victims were in mid-answer. The others had no token yet, and "
        "wait for their first."
    )
    return {**_named(columns, rows), "victims_in_mid_answer": paused}


# One load of the user's choice ----------------------------------------------------------------------------------------


def _one_load(args: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    """Story A under the user's own limits, or a mystery beside the scheduler it was made from."""
    budget = MYSTERY_BUDGET if args.mystery else 512
    config = options.config_from(args, max_num_batched_tokens=budget, max_num_seqs=64, num_blocks=2000)
    title = "Story A: sixty requests, five of them with prompts of 600-1,800"

    def run() -> Report:
        return bench.engine(bench.scheduler(config), None, traces.story_a()).run()

    right = run()
    if not args.mystery:
        incidents.print_summary(title, config, right)
        return right.to_json()
    graft(incidents.mystery(args.mystery, LESSON), sys.modules[bench.scheduler.__module__].__dict__)
    wrong = run()
    print(f"Mystery {args.mystery}: something in it is wrong. Find the limits that show what.\n")
    incidents.print_limits(title, config)
    rows = [
        (name, len(r.finished), *incidents._headline(r))
        for name, r in (("as it was", right), (f"mystery {args.mystery}", wrong))
    ]
    print(table(("scheduler", "finished", *incidents._COLUMNS), rows))
    if wrong.diagnosis:
        print(f"\nmystery {args.mystery} is {wrong.end}: {wrong.diagnosis}")
    return {"as_it_was": right.to_json(), "mystery": wrong.to_json()}

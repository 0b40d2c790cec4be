"""Step-by-step tables for the lessons, printed by the schedulers of solutions/ themselves.

running_example: s10's four requests, nine steps; evil_twin: the same limits, and a request that outgrew the budget;
chunked_example, threshold_example: s11's two; a_seat: s13's urgent request, which takes a seat; small_budget: a token
budget of 4 for 8 seats; watermarks: what a reserve buys and what it costs; real_lengths: s08's slot utilisation on the
real Azure traces; and the tables of s14, in kit/unified.py. Use: python3 tools/tables.py NAME
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "solutions"))

from kit import traces, unified
from kit.config import Config
from kit.experiments import groups
from kit.report import table
from kit.request import Request
from kit.runner import FakeRunner
from s08_static_batching import Batch, Engine, slot_utilisation
from s10_scheduler import Scheduler
from s11_chunked_prefill import ChunkedScheduler

EXAMPLE: dict[str, Any] = {
    "max_num_batched_tokens": 8,
    "max_num_seqs": 4,
    "num_blocks": 5,
    "block_size": 4,
    "watermark": 0.0,
}


def steps(requests: list[Request], config: Config, most: int, kind: type[Scheduler] = Scheduler) -> None:
    """Print a load step by step: what is computed, who was evicted, why the head waits, blocks in use while it runs."""
    engine = Engine(kind(config), FakeRunner(), requests)
    scheduler, used = engine.scheduler, 0
    rows: list[tuple[Any, ...]] = []
    execute = engine.runner.execute

    def watched(batch: Batch) -> Any:
        nonlocal used
        used = config.num_blocks - scheduler.pool.num_free
        return execute(batch)

    engine.runner.execute = watched  # type: ignore[method-assign]
    while (engine.arrivals or scheduler.waiting or scheduler.running) and len(rows) < most:
        used = 0
        batch = engine.step()
        head = next((r for r in scheduler.waiting), None)
        event = "".join(f"{r.id} evicted; " for r in batch.preempted)
        event += f"{head.id} waits: {batch.head}" if head and batch.head else ""
        computed = " ".join(f"{r.id}{n}" for r, n in batch.tokens.items()) or "-"
        rows.append((len(rows) + 1, computed, sum(batch.tokens.values()), used, event.rstrip("; ")))
    print(table(("step", "computes", "tokens", "blocks", "event"), rows))


def running_example() -> None:
    steps(traces.running_example(), Config(**EXAMPLE), 20)


def evil_twin() -> None:
    steps(traces.evil_twin(), Config(**EXAMPLE, reject_unservable=False), 11)


def long_example(**options: Any) -> None:
    config = Config(**{**EXAMPLE, "num_blocks": 12, **options})
    steps([Request(name, range(prompt), n) for name, prompt, n in zip("ABLS", (3, 4, 19, 2), (6, 4, 2, 2))],
          config, 20, ChunkedScheduler)  # fmt: skip


def chunked_example() -> None:
    long_example()


def threshold_example() -> None:
    long_example(long_prefill_token_threshold=4)


def a_seat() -> None:
    """s13: two seats, two requests of priority 10, an urgent one in the fourth step."""
    from s13_fairness import FairScheduler

    limits = {**EXAMPLE, "max_num_seqs": 2, "num_blocks": 100, "max_num_batched_tokens": 16}
    load = [Request(*entry) for entry in (("A", range(4), 8, 0, 10), ("B", range(4), 6, 1, 10),
            ("H", range(4), 3, 3, 0))]  # fmt: skip
    steps(load, Config(**limits, policy="priority", preempt_for_priority=True), 20, FairScheduler)


def small_budget() -> None:
    config = Config(max_num_batched_tokens=4, max_num_seqs=8, num_blocks=100, watermark=0.0,
                    allow_small_budget=True, reject_unservable=False)  # fmt: skip
    scheduler = Scheduler(config)
    engine = Engine(scheduler, FakeRunner(), [])
    requests = [Request(f"r{i}", range(1), 200) for i in range(8)]
    for request in requests:
        scheduler.add(request)
    for _ in range(100):
        engine.step()
    print("tokens after 100 steps: " + " ".join(f"{r.id} {len(r.output)}" for r in requests))


def watermarks() -> None:
    rows = []
    for watermark in (0.0, 0.01, 0.05, 0.1, 0.2):
        config = Config(max_num_batched_tokens=1024, max_num_seqs=256, num_blocks=140, watermark=watermark)
        report = Engine(Scheduler(config), None, traces.story_d(500, rate=25.0)).run()
        assert report.end == "done"
        blocks = config.watermark_blocks
        rows.append(
            (f"{watermark:.0%}", blocks, report.preemptions, round(report.longest_gap_ms), round(report.tokens_per_s))
        )
    print(table(("watermark", "blocks", "evictions", "longest pause ms", "tokens/s"), rows))


def real_lengths() -> None:
    """Slot utilisation of static batches of 8, 16 and 32 cut from the real traces, in order of arrival."""
    for name in ("AzureLLMInferenceTrace_conv.csv", "AzureLLMInferenceTrace_code.csv"):
        path, why = traces.find_trace(name)
        if path is None:
            print(why)
            continue
        lengths = [request.max_tokens for request in traces.read_csv(path)]
        used = [slot_utilisation(groups(lengths, slots)) for slots in (8, 16, 32)]
        print(f"{name}: " + " / ".join(f"{share:.3f}" for share in used))


if __name__ == "__main__":
    tables = (
        running_example,
        evil_twin,
        chunked_example,
        threshold_example,
        a_seat,
        small_budget,
        watermarks,
        real_lengths,
    )
    own = {f.__name__: f for f in tables}
    {**own, **unified.TABLES}[sys.argv[1]]()

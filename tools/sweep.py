"""One hour of chat under every token budget, pool and gate: 8 x 6 x 2 runs of the sweep loop (kit.sweep).

python3 tools/sweep.py [--trace FILE] [--json FILE]. Without a trace the real hour is taken from $COURSE_DATA or data/, else a
synthetic one. Times are modelled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "solutions"))

from kit import options, sweep
from kit.report import heading, table
from s03_step_cost import A100_LLAMA3_8B

SHOWN: tuple[tuple[str, Callable[[sweep.Outcome], str]], ...] = (
    ("output tokens/s", lambda outcome: f"{outcome.tokens_per_s:,.0f}"),
    ("TTFT p50, s", lambda outcome: f"{outcome.ttft_ms(50) / 1e3:,.2f}"),
    ("TTFT p99, s", lambda outcome: f"{outcome.ttft_ms(99) / 1e3:,.2f}"),
    ("preemptions", lambda outcome: f"{outcome.total_preemptions:,}"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", metavar="FILE", help=f"default: {sweep.TRACE} in $COURSE_DATA or data/, else synthetic")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to a file as well")
    args = parser.parse_args()
    if args.json is not None:
        try:
            options.writable(args.json)  # before the work of a minute
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
    load = sweep.hour(args.trace)
    total = len(sweep.BUDGETS) * len(sweep.POOLS) * len(sweep.ADMISSIONS)
    with options.Progress("sweep", total) as progress:
        runs = sweep.grid(load, A100_LLAMA3_8B, progress.update)
    print(f"{load.name}, {len(load):,} requests, 256 sequences; {A100_LLAMA3_8B.label}")
    cells = {(admission, pool, budget): outcome for admission, pool, budget, outcome in runs}
    for admission in sweep.ADMISSIONS:
        for what, show in SHOWN:
            heading(f"admission {admission}: {what}")
            rows = [(pool, *(show(cells[admission, pool, b]) for b in sweep.BUDGETS)) for pool in sweep.POOLS]
            print(table(("blocks \\ budget", *map(str, sweep.BUDGETS)), rows))
    refused = {pool: len(load) - cells["chunk", pool, sweep.BUDGETS[0]].finished for pool in sweep.POOLS}
    if any(refused.values()):
        said = ", ".join(f"{n} at {pool:,}" for pool, n in refused.items() if n)
        print(f"\nRefused, because they could never have all their blocks above the watermark: {said}.")
    options.json_out(args, [numbers(*run) for run in runs])
    return 0


def numbers(admission: str, pool: int, budget: int, outcome: sweep.Outcome) -> dict[str, Any]:
    return {
        "admission": admission,
        "num_blocks": pool,
        "max_num_batched_tokens": budget,
        "finished": outcome.finished,
        "steps": outcome.steps,
        "end_ns": outcome.end_ns,
        "tokens_per_s": outcome.tokens_per_s,
        "ttft_ms": {"p50": outcome.ttft_ms(50), "p99": outcome.ttft_ms(99), "max": outcome.ttft_ms(100)},
        "preemptions": outcome.total_preemptions,
        "rec_new": outcome.rec_new,
    }


if __name__ == "__main__":
    sys.exit(options.run(main))

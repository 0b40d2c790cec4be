"""A study in thrash: what a half-computed prompt does when the pool is short, and what a wider gate changes.

    python3 tools/study_thrash.py                 600 synthetic requests like the Azure chat trace, a few seconds
    python3 tools/study_thrash.py --trace FILE    a real one: the Azure conv hour takes some minutes

1,200 KV blocks, 256 seats, a token budget of 512, chunked prefill, first come first served; modelled for an A100 and Llama-3-8B.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "solutions"))

from kit import options, traces
from kit.config import Config
from kit.errors import BadConfig
from kit.report import Report, done, table
from kit.request import Request
from s03_step_cost import A100_LLAMA3_8B
from s08_static_batching import Engine
from s11_chunked_prefill import ChunkedScheduler


class Waits(ChunkedScheduler):
    """A prompt in the middle of its chunks that would have to evict itself keeps its blocks, and waits for more.

    Whoever was admitted before it may still evict it, so nobody waits for ever: the first in line always gets on.
    """

    def decode_pass(self, budget: int, requests: Sequence[Request] | None = None) -> int:
        for request in tuple(self.running) if requests is None else requests:
            if not (self.decodes(request) or request in self.batch.preempted) and self.stands_still(request, budget):
                continue
            budget = super().decode_pass(budget, [request])
        return budget

    def stands_still(self, request: Request, budget: int) -> bool:
        """Whether its next chunk lacks blocks, and the victim would be itself."""
        n = self.chunk_size(request, budget)
        return n > 0 and self.pool.missing(request, n) > self.pool.num_free and self.pick_victim() is request


class WaitsAlone(Waits):
    """While a prompt waits for blocks, nobody joins: a newcomer would take the blocks that it waits for."""

    def admit_pass(self, budget: int) -> int:
        waits = any(request not in self.batch.tokens for request in self.running)
        return budget if waits and budget else super().admit_pass(budget)


VARIANTS: dict[str, tuple[type[ChunkedScheduler], str]] = {
    "evicts itself": (ChunkedScheduler, "chunk"),
    "waits": (Waits, "chunk"),
    "waits, nobody joins": (WaitsAlone, "chunk"),
    "evicts itself, whole-prompt gate": (ChunkedScheduler, "full_prompt"),
    "waits, whole-prompt gate": (Waits, "full_prompt"),
}
COLUMNS = ("", "steps", "preemptions", "rec/new", "tokens/s", "TTFT p50 s", "p99 s", "longest gap s")


def run(name: str, requests: list[Request], blocks: int) -> tuple[object, ...]:
    """The row of one variant."""
    scheduler, admission = VARIANTS[name]
    config = Config(max_num_batched_tokens=512, max_num_seqs=256, num_blocks=blocks, admission=admission)
    engine = Engine(scheduler(config), None, requests)
    with options.Progress(name, len(requests)) as progress:
        report = engine.run(watch=lambda: progress.update(len(engine.report.rows)))
    if not report.finished:
        raise BadConfig(f"all {len(requests):,} requests are refused: {report.refused[0][1]}")
    return row(name, report)


def row(name: str, report: Report) -> tuple[object, ...]:
    done(report, name)
    ttft = [f"{report.ttft_ms(p) / 1e3:.1f}" for p in (50, 99)]
    gap = f"{report.longest_gap_ms / 1e3:.2f}"
    return (
        name,
        report.num_steps,
        report.preemptions,
        f"{100 * report.rec_new:.0f}%",
        round(report.tokens_per_s),
        *ttft,
        gap,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trace", metavar="FILE", help="a CSV trace, in place of 600 synthetic requests")
    parser.add_argument("--blocks", metavar="N", type=int, default=1200, help="KV blocks in the pool")
    names = "; ".join(f'"{name}"' for name in VARIANTS)  # some hold a comma
    parser.add_argument("--only", metavar="NAME", help=f"one of: {names}")
    args = parser.parse_args(argv)
    if args.only is not None and args.only not in VARIANTS:
        parser.error(f'--only "{args.only}" is unknown; choose one of: {names}')

    def load() -> list[Request]:
        return traces.read_csv(args.trace) if args.trace else traces.azure_like("conv", 600, seed=1)

    what = Path(args.trace).name if args.trace else "synthetic, like Azure conv"
    print(f"{what}: {len(load()):,} requests; {args.blocks:,} blocks; budget 512; 256 seats; {A100_LLAMA3_8B.label}\n")
    print(table(COLUMNS, [run(name, load(), args.blocks) for name in ([args.only] if args.only else VARIANTS)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(options.run(main))

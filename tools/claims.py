"""Claims under test: what is said about batching and KV memory, and what our own code says to it.

    python3 tools/claims.py          the names
    python3 tools/claims.py NAME     one claim: the statement, the verdict, the number
    python3 tools/claims.py all      every claim
    python3 tools/claims.py table    the table of lessons/claims.md

A function a claim; it returns the number as a sentence. Milliseconds are modelled (A100, Llama-3-8B), loads are synthetic.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "solutions"))

import s04_kv_memory as s04
from kit import kv_memory_experiments as reservations
from kit import options, traces
from kit.config import Config
from kit.errors import CourseError
from kit.report import Report, percentile
from kit.request import Count, Request
from s03_step_cost import A100, A100_LLAMA3_8B, LLAMA3_8B, Model
from s05_paged_blocks import blocks_needed
from s08_static_batching import Batch, Engine, StaticBatcher
from s09_continuous_batching import ContinuousBatcher
from s10_scheduler import Scheduler
from s11_chunked_prefill import ChunkedScheduler
from s12_preemption import Link, SwappingScheduler, ToTheBack, swap_ms

GB = 1e9


@dataclass(frozen=True)
class Claim:
    """statement: as it is told. verdict: what is left of it. number: makes ours; None where there is nothing to run."""

    name: str
    statement: str
    verdict: str
    number: Callable[[], str] | None = None
    why: str = ""

    @property
    def command(self) -> str:
        return f"`python3 tools/claims.py {self.name}`" if self.number else "-"


def serve(scheduler: Any, requests: Iterable[Request], *, done: bool = True) -> Report:
    report = Engine(scheduler, None, requests).run()
    assert report.end == "done" or not done, f"{report.end}: {report.diagnosis}"
    return report


def config(budget: int, blocks: int, seats: int = 256, **more: Any) -> Config:
    return Config(max_num_batched_tokens=budget, num_blocks=blocks, max_num_seqs=seats, **more)


def small(rate: float = 25.0, seed: int = 4, n: int = 500) -> list[Request]:
    """Prompts of 16-160 tokens, outputs of 16-96."""
    return traces.story_d(n, seed=seed, rate=rate)


def arriving(rate: float) -> list[Request]:
    """Two hundred, outputs exponential with mean 100."""
    requests = traces.story_f()
    for request, arrival_ns in zip(requests, traces.poisson(len(requests), rate, Random(1)), strict=True):
        request.arrival_ns = arrival_ns
    return requests


def seconds(report: Report, p: float, which: Callable[[Any], bool] = lambda row: True) -> str:
    return f"{report.ttft_ms(p, which) / 1e3:.2f}"


def slashed(values: Iterable[Any]) -> str:
    return " / ".join(str(value) for value in values)


# Batching -----------------------------------------------------------------------------------------------------------


def slots() -> str:
    said = []
    for name, batcher in (("static", StaticBatcher(16)), ("continuous", ContinuousBatcher(16))):
        report = serve(batcher, traces.story_f())
        busy = sum(report.num_running) / (16 * report.num_steps)
        arithmetic = 2 * LLAMA3_8B.weights * report.computed_tokens / (A100.flops_per_s * report.duration_s)
        said.append(
            f"{name}: {busy:.0%} of 16 slots, {arithmetic:.1%} of the chip's arithmetic, {report.tokens_per_s:,.0f} tokens/s"
        )
    return "; ".join(said)


def hundred() -> str:
    means = []
    for batcher in (StaticBatcher(16), ContinuousBatcher(16)):
        rows = serve(batcher, traces.story_f(100)).rows
        means.append(sum(row.finish_ns - row.arrival_ns for row in rows) / len(rows) / 1e9)
    step_ms = A100_LLAMA3_8B.step_ns(16, 16 * 80) / 1e6
    return (f"100 answers of 100 tokens in the mean, 16 slots: {means[0]:.1f} s in the mean static, {means[1]:.1f} s continuous; "
            f"280 ms are {280 / step_ms:.0f} decode steps, so {280 / step_ms:.0f} tokens")  # fmt: skip


def dynamic() -> str:
    runs = [serve(batcher, arriving(6.0)) for batcher in (StaticBatcher(16), ContinuousBatcher(16))]
    return f"6 requests a second: TTFT p50 {slashed(f'{run.ttft_ms(50):,.0f}' for run in runs)} ms, {slashed(f'{run.tokens_per_s:.0f}' for run in runs)} tokens/s (dynamic / continuous)"


def bursts() -> str:
    said = []
    for name, rate in (("20 a second", 20.0), ("all at once", None)):
        report = serve(ChunkedScheduler(config(512, 4000)), traces.story_d(200, rate=rate))
        said.append(
            f"{name}: TTFT p99 {report.ttft_ms(99):,.0f} ms, gap p99 {report.itl_ms(99):.0f}, longest {report.longest_gap_ms:.0f}"
        )
    return "; ".join(said) + f"; an empty machine's step of 512 takes {A100_LLAMA3_8B.step_ns(512, 0) / 1e6:.0f} ms"


# Memory -------------------------------------------------------------------------------------------------------------


def wasted() -> str:
    used = [reservations.FIGURE_2[policy][0] for policy in s04.POLICIES]
    return (f"Orca max / pow2 / oracle use {slashed(used)} %, so they waste {slashed(f'{100 - share:.1f}' for share in used)} %; "
            f"vLLM {100 - reservations.FIGURE_2_VLLM:.1f} %")  # fmt: skip


def reserved() -> str:
    load = reservations.lengths(3000)
    shares = {name: [reservations.simulate(s04, policy, memory(reservations.NUM_SLOTS), load).tokens for policy in s04.POLICIES]
              for name, memory in (("first fit", s04.FirstFit), ("buddy allocator", s04.Buddy))}  # fmt: skip
    return "max / pow2 / oracle waste " + ", ".join(
        f"{slashed(f'{100 - 100 * share:.0f}' for share in each)} % under a {name}" for name, each in shares.items()
    )


def swap_13b() -> str:
    wire = Link("32 GB/s", 32e9, 0.0)
    llama13 = Model("Llama-2-13B", 40, 5120, 40, 40, 128, 13824)
    both, gqa = (swap_ms(model, 32_768, wire) / 1e3 for model in (llama13, LLAMA3_8B))
    return (f"{32_768 * llama13.kv_bytes / GB:.1f} GB: {both / 2:.2f} s out, {both:.2f} s out and in; "
            f"Llama-3-8B, whose heads share KV: {gqa / 2:.2f} s and {gqa:.2f} s")  # fmt: skip


class WatchedSwap(SwappingScheduler):
    """Remembers the most CPU blocks that were in use at a time."""

    peak = swaps = 0

    def schedule(self) -> Batch:
        batch = super().schedule()
        assert self.cpu_pool is not None
        self.peak = max(self.peak, self.config.cpu_blocks - self.cpu_pool.num_free)
        self.swaps += len(batch.swapped)
        return batch


def swap_space() -> str:
    said = []
    for blocks in (180, 100):
        scheduler = WatchedSwap(config(1024, blocks, cpu_blocks=10_000))
        serve(scheduler, small())
        said.append(
            f"pool of {blocks}: {scheduler.swaps} swaps, at most {scheduler.peak} CPU blocks at a time ({scheduler.peak / blocks:.0%} of the pool)"
        )
    share, little = ([f"{part * gb:.{digits}f}" for part in (0.2, 0.3)] for gb, digits in ((80, 0), (24, 1)))
    return "; ".join(said) + f". 20-30 % of 80 GB are {'-'.join(share)} GB, not 4-8; of 24 GB {'-'.join(little)}"


def swaps_a_minute() -> str:
    said = []
    for blocks in (240, 180, 140, 100):
        report = serve(Scheduler(config(1024, blocks)), small())
        said.append(
            f"{60 * report.preemptions / report.duration_s:,.0f} a minute: {report.tokens_per_s:,.0f} tokens/s, TTFT p99 {report.ttft_ms(99):,.0f} ms"
        )
    return "; ".join(said)


def block_size() -> str:
    stored = [request.max_kv_slots for request in traces.azure_like("conv", 5000, seed=1)]
    sizes = (1, 8, 16, 32, 64, 128)
    given = [sum(blocks_needed(n, size) * size for n in stored) for size in sizes]
    return f"blocks of {slashed(sizes)}: {slashed(f'{100 - 100 * sum(stored) / all:.2f}' for all in given)} % of what is given out is empty at the end"


def reserve() -> str:
    runs = [serve(Scheduler(config(1024, 140, watermark=share)), small()) for share in (0.0, 0.05, 0.1, 0.2)]
    return (f"0 / 5 / 10 / 20 %: {slashed(run.preemptions for run in runs)} evictions, "
            f"{slashed(f'{run.tokens_per_s:,.0f}' for run in runs)} tokens/s, TTFT p99 {slashed(seconds(run, 99) for run in runs)} s")  # fmt: skip


def full_pool() -> str:
    runs = [serve(Scheduler(config(1024, 100, watermark=0.0)), small(seed=seed, n=200)) for seed in range(20)]
    return f"watermark 0, 20 loads of 200: all {sum(len(run.finished) for run in runs):,} finish, with {sum(run.preemptions for run in runs):,} evictions"


def budget_memory() -> str:
    runs = [serve(ChunkedScheduler(config(budget, 4000)), traces.story_d(200)) for budget in (256, 1024, 4096)]
    return (f"one pool of 4,000 blocks, budget 256 / 1,024 / 4,096: {slashed(f'{run.tokens_per_s:,.0f}' for run in runs)} tokens/s, "
            f"longest gap {slashed(f'{run.longest_gap_ms:.0f}' for run in runs)} ms")  # fmt: skip


# Order --------------------------------------------------------------------------------------------------------------


def long(row: Any) -> bool:
    return row.prompt_tokens > 256


def fcfs_long() -> str:
    runs = [
        serve(Scheduler(config(2304, 4000, 32, policy=policy)), traces.story_c(1000, rate=15.0))
        for policy in ("fcfs", "shortest")
    ]
    return f"TTFT p99 of the long ones {slashed(seconds(run, 99, long) for run in runs)} s, of the short ones {slashed(seconds(run, 99, lambda row: not long(row)) for run in runs)} s (first come / shortest first)"


def shortest_wins() -> str:
    better = [0, 0, 0, 0]
    for seed in range(50):
        first, short = (
            serve(Scheduler(config(2304, 4000, 32, policy=policy)), traces.story_c(200, seed))
            for policy in ("fcfs", "shortest")
        )
        for i, (p, which) in enumerate(((50, lambda row: True), (99, lambda row: True), (50, long), (99, long))):
            better[i] += short.ttft_ms(p, which) < first.ttft_ms(p, which)
    return f"TTFT, 50 bursts of 200: better in {better[0]} at the median, {better[1]} at p99; of the long fifth in {better[2]} and {better[3]}"


def decode_first() -> str:
    said = []
    for blocks in (400, 100):
        runs = [serve(ChunkedScheduler(config(1024, blocks, prefill_first=first)), small()) for first in (False, True)]
        held = [sum(used * ns for used, ns in zip(run.used_blocks, run.gap_ns)) / 1e9 for run in runs]
        said.append(
            f"{blocks} blocks: {slashed(f'{one:,.0f}' for one in held)} block-seconds, {slashed(run.preemptions for run in runs)} "
            f"evictions, gap p99 {slashed(f'{run.itl_ms(99):.0f}' for run in runs)} ms"
        )
    return "; ".join(said) + " (decodes first, mixed / prompts first, apart)"


def front() -> str:
    gaps, evictions = [], []
    for policy in (None, ToTheBack):
        runs = [
            serve(SwappingScheduler(config(1024, 60), policy() if policy else None), traces.story_e(seed=seed))
            for seed in range(30)
        ]
        gaps.append(f"{percentile([run.longest_gap_ms / 1e3 for run in runs], 50):.1f}")
        evictions.append(sum(run.preemptions for run in runs))
    return f"30 bursts of 60 in 60 blocks end under both; {slashed(f'{n:,}' for n in evictions)} evictions, median longest pause {slashed(gaps)} s (front / back)"


class Judged(ChunkedScheduler):
    """Counts how often the last admitted was the cheapest victim."""

    evictions = cheapest = fewest = 0

    def pick_victim(self) -> Request:
        victim = super().pick_victim()
        self.evictions += 1
        self.cheapest += victim.num_computed_tokens <= min(other.num_computed_tokens for other in self.running)
        self.fewest += victim.num_output_tokens <= min(other.num_output_tokens for other in self.running)
        return victim


def least_work() -> str:
    judged = []
    for seed in range(20):
        scheduler = Judged(config(1024, 60))
        serve(scheduler, traces.story_e(seed=seed))
        judged.append(scheduler)
    n, cheapest, fewest = (sum(getattr(one, what) for one in judged) for what in ("evictions", "cheapest", "fewest"))
    return f"of {n:,} evictions the last admitted had the fewest outputs in {fewest / n:.0%}, and was the cheapest to recompute in {cheapest / n:.0%}"


def thrash() -> str:
    said = []
    for blocks in (240, 180, 140, 100, 60):
        report = serve(Scheduler(config(1024, blocks)), small())
        said.append((f"{report.tokens_per_s:,.0f}", f"{report.rec_new:.0%}", seconds(report, 99)))
    rates, again, waits = zip(*said)
    return f"240 / 180 / 140 / 100 / 60 blocks: {slashed(rates)} tokens/s, rec/new {slashed(again)}, TTFT p99 {slashed(waits)} s"


def chunk_price() -> str:
    budgets = (64, 128, 256, 512, 2048)
    runs = [serve(ChunkedScheduler(config(budget, 2000, 64)), traces.story_a()) for budget in budgets]
    most = runs[-1].tokens_per_s
    return f"budget {slashed(budgets)}: {slashed(f'{run.tokens_per_s:,.0f}' for run in runs)} tokens/s; against the last {slashed(f'{100 * run.tokens_per_s / most - 100:+.1f}' for run in runs[:-1])} %"


class GoesOn(Scheduler):
    """Passes on to the next when the head does not fit into what is left of the budget."""

    def admit_pass(self, budget: int) -> int:
        for request in tuple(self.waiting):
            wait = self.why_wait(request, budget)
            if wait is not None and wait.rule != "budget":
                break
            if wait is None:
                self.waiting.remove(request)
                self.running.append(request)
                budget -= self.compute(request, self.chunk_size(request, budget))
        return budget


def go_on() -> str:
    runs = [serve(make(config(2304, 4000)), traces.story_c(200)) for make in (Scheduler, GoesOn)]
    p50 = [slashed(seconds(run, 50, which) for run in runs) for which in (long, lambda row: not long(row))]
    return f"whole prompts, a burst of 200: TTFT p50 of the long ones {p50[0]} s, of the short ones {p50[1]} s (break / continue)"


# Speed --------------------------------------------------------------------------------------------------------------


def python_steps() -> str:
    said = []
    for running in (16, 64, 256):
        scheduler = ChunkedScheduler(config(16_384, 40_000, reject_unservable=False))
        for i in range(running):
            scheduler.add(Request(f"r{i}", range(32), 1_000_000, output=Count()))
        tokens = {f"r{i}": [-1] for i in range(running)}
        scheduler.update(scheduler.schedule(), tokens)
        best, steps = float("inf"), max(20, 20_000 // running)
        for _ in range(5):
            began = time.process_time()
            for _ in range(steps):
                scheduler.update(scheduler.schedule(), tokens)
            best = min(best, time.process_time() - began)
        said.append(f"{steps / best:,.0f}")
    step_ms = A100_LLAMA3_8B.step_ns(16, 16 * 500) / 1e6
    return f"s11's scheduler on this machine, 16 / 64 / 256 running: {slashed(said)} steps a second; the GPU asks for {1000 / step_ms:.0f}"


def launches() -> str:
    step_ms = A100_LLAMA3_8B.step_ns(16, 16 * 500) / 1e6
    return f"a decode step for 16 requests takes {step_ms:.1f} ms; 20 us are {0.02 / step_ms:.1%} of it, and {step_ms / 0.02:.0f} launches that nothing hides would double it"


CLAIMS = (
    Claim("slots", "Static batching leaves 60 % of the GPU idle; continuous batching reaches 95 %.",
          "False: these are slots. A slot in use is not a busy GPU, whose arithmetic idles under both: decoding waits for memory.", slots),
    Claim("hundred", "92 % GPU against 38 %, and 280 ms against 1.2 s, for 100 requests.",
          "Not with answers of 100 tokens: 280 ms has no room for one. No source names lengths, model or chip. The direction is true.", hundred),
    Claim("dynamic", "Continuous and dynamic batching are the same.",
          "False: a dynamic batch is chosen late and closed all the same.", dynamic),
    Claim("bursts", "The scheduler is greedy, so it jitters under bursts.",
          "True for TTFT. With ample memory the gaps between tokens are bounded by the token budget, whatever arrives.", bursts),
    Claim("wasted", "Existing systems waste 20-38 % of KV memory.",
          "False: that is the share they use (Kwon et al., SOSP 2023, figure 2).", wasted),
    Claim("reserved", "Static reservation wastes 50-80 %.",
          "True of these three policies on exponential lengths; it depends on the lengths, and on the allocator.", reserved),
    Claim("paged", "PagedAttention is Karpathy's, of 2022.",
          "False: Kwon et al., SOSP 2023 (arXiv 2309.06180). Of 2022 is Orca, continuous batching (Yu et al., OSDI 2022).",
          why="a matter of record"),
    Claim("swap_13b", "Swapping out 32K tokens of a 13B model takes 1.6 s (at 32 GB/s).",
          "False: that is out and in. And few models of today store that much.", swap_13b),
    Claim("swap_space", "Give 4-8 GB of swap space; give 20-30 % of the GPU's memory.",
          "Two answers, which exclude each other on a large GPU. What is needed depends on how far the pool is overbooked.", swap_space),
    Claim("swaps_a_minute", "More than ten swaps (or preemptions) a minute mean trouble.",
          "False as a number: it has to be put beside the 1,500 requests of that minute. 145 a minute leave the throughput; the TTFT p99 is seven times as long.", swaps_a_minute),
    Claim("block_size", "Block size 16 is the sweet spot.",
          "Not for this reason: waste only grows with the size. What pulls the other way is kernels and tables, which this can't measure.", block_size),
    Claim("reserve", "Keep 10 % of the blocks in reserve.",
          "Depends on how much: 5 % is better in all three here, from 10 % on the queue grows.", reserve),
    Claim("full_pool", "Admission to 100 % of the pool deadlocks.",
          "False where a request can be evicted, and what can never fit is refused.", full_pool),
    Claim("budget_memory", "Token budget = memory / step.",
          "False: memory bounds who runs, the budget how long a step takes. In one pool the budget is chosen by the gap one accepts.", budget_memory),
    Claim("fcfs_long", "First come, first served starves the long requests.",
          "False: under it short and long wait alike. Shortest first makes the long ones wait.", fcfs_long),
    Claim("shortest_wins", "Shortest first wins everywhere once the queue drains.",
          "False: overall nearly always. The median of the long ones is worse in every burst.", shortest_wins),
    Claim("decode_first", "Decodes first is also a policy for memory.",
          "True: what runs leaves sooner, so less is held. The gaps gain more.", decode_first),
    Claim("front", "A victim must return to the front of the queue, or it livelocks.",
          "False: everybody ends either way. True is that the front makes the longest pause shorter.", front),
    Claim("least_work", "The last admitted loses the least work.",
          "True of outputs; of work in less than half: the newest may have the longest prompt.", least_work),
    Claim("thrash", "Thrashing makes throughput collapse.",
          "TTFT first, and by far. Throughput goes late, or with first-chunk admission and long prompts ([the study](study_thrash.md)).", thrash),
    Claim("chunk_price", "Chunked prefill leaves throughput unharmed.",
          "True well above the knee (some 80 tokens); small chunks cost.", chunk_price),
    Claim("go_on", "When the budget is exhausted, `continue` with the next request.",
          "With chunks it changes nothing: nobody fits into 0 tokens. With whole prompts it lets short ones overtake.", go_on),
    Claim("priority", "A larger priority is more urgent. Or: less urgent.",
          "Either. Smaller is more urgent in vLLM (0.33, `Request.__lt__`) and here; larger in SGLang (0.5.23), unless `schedule_low_priority_values_first` is set.",
          why="a convention"),
    Claim("python_steps", "A scheduler in Python tops out at 5,000 steps a second.",
          "False here: it depends on how many run, and a GPU can't ask for so many.", python_steps),
    Claim("locks", "Lock contention in the block manager limits throughput.",
          "Not tested here. vLLM 0.33 has no lock there to contend for: no file of `vllm/v1/core` uses `threading`.",
          why="our pool has no lock either"),
    Claim("launches", "A kernel launch of 20 us halves the throughput of short requests.",
          "True of hundreds of launches a step that nothing hides, not of one. It is paid per step, by short and long alike.", launches),
    Claim("tensor_parallel", "Tensor parallelism costs the scheduler 15-20 %.",
          "Not tested here: it needs several GPUs. The scheduler's decisions don't depend on how many there are.",
          why="one decision serves all ranks"),
    Claim("speculative", "Speculative decoding makes it 1.8-2.3 times faster.",
          "Open until s15: it depends on the acceptance rate and on the batch.", why="the lesson is not there yet"),
)  # fmt: skip


def told(claim: Claim) -> str:
    return claim.number() if claim.number else claim.why


def table() -> str:
    """The claims as a table in Markdown. What depends on the machine is in the page's text, with its date."""
    lines = ["| it is said | verdict | our number, or why there is none | command |", "|---|---|---|---|"]
    for claim in CLAIMS:
        number = "below, with its date" if claim.number is python_steps else told(claim)
        lines.append(f"| {claim.statement} | {claim.verdict} | {number} | {claim.command} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    names = list(sys.argv[1:] if argv is None else argv)
    known = {claim.name: claim for claim in CLAIMS}
    if "--help" in names or "-h" in names:
        print(__doc__)
    elif not names:
        print("\n".join(f"{name:16} {claim.statement}" for name, claim in known.items()))
    elif names == ["table"]:
        print(table())
    else:
        for name in known if names == ["all"] else names:
            if name not in known:
                if name in ("all", "table"):
                    raise CourseError(f"`{name}` stands alone: leave out the other names")
                raise CourseError(f"there is no claim {name!r}; choose from {', '.join(known)}, all, table")
            claim = known[name]
            text = f"{claim.statement}\n{claim.verdict}\n{told(claim)}"
            print(
                f"{name}\n"
                + "\n".join(
                    textwrap.fill(line, 110, initial_indent="  ", subsequent_indent="  ") for line in text.split("\n")
                )
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(options.run(main))

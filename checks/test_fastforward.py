"""Fast-forward against the plain engine: the same report, to the last number and the last block, for every scheduler."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import place  # noqa: F401  # puts solutions/ on the path
import pytest
from kit import fastforward
from kit.config import Config
from kit.request import Count, Request
from kit.runner import FakeRunner
from s03_step_cost import A100_LLAMA3_8B, H100_LLAMA31_8B
from s08_static_batching import CostRunner, Engine, StaticBatcher
from s09_continuous_batching import ContinuousBatcher
from s10_scheduler import Scheduler, ThrashMeter
from s11_chunked_prefill import ChunkedScheduler
from s12_preemption import VICTIM_KEYS, SwappingScheduler, SwapRunner, ToTheBack
from s13_fairness import FairScheduler, FairShare

COSTS = (
    A100_LLAMA3_8B,
    H100_LLAMA31_8B,  # attention takes 39.126 ns a token: each step is rounded by itself
    replace(A100_LLAMA3_8B, attention_ns_per_kv_token=0.3),
)


def load(rng: Random, longest: int) -> list[Request]:
    """Bursts and streams, short and long ones, a few that are refused, a few with tokens to stop at."""
    spread = rng.choice((0, 10**7, 10**9, 4 * 10**9))
    requests = []
    for i in range(rng.randint(1, 24)):
        prompt = rng.randint(1, longest if rng.random() < 0.2 else max(1, longest // 6))
        output = 1 if rng.random() < 0.1 else rng.randint(1, 120)
        requests.append(
            Request(
                f"r{i}",
                range(prompt),
                output,
                rng.randint(0, spread) // 10**6 * 10**6,
                rng.randint(0, 3),
                stop_token_ids=rng.choice((frozenset(),) * 9 + (frozenset({-1}), frozenset({7}))),
                output=Count() if i % 2 else [],
                tenant=rng.choice("xy"),
            )
        )
    return requests


def any_config(rng: Random, lesson: int) -> Config:
    """Tight or ample, in every direction that a lesson knows."""
    block_size = rng.choice((1, 4, 16))
    policy = rng.choice(("fcfs", "shortest", "priority"))
    options = {
        "max_num_batched_tokens": rng.choice((8, 64, 300, 2048)),
        "max_num_seqs": rng.choice((1, 3, 8)),
        "num_blocks": rng.choice((20, 60, 200, 4000)) * 16 // block_size,
        "block_size": block_size,
        "watermark": rng.choice((0.0, 0.01, 0.2)),
        "policy": policy,
        "max_model_len": rng.choice((None, 200)),
    }
    if lesson == 10:
        return Config(**options, allow_small_budget=True)
    chunked = rng.random() < 0.8
    options |= {
        "chunked_prefill": chunked,
        "prefill_first": rng.random() < 0.25,
        "long_prefill_token_threshold": rng.choice((0, 5, 40)) if chunked else 0,
        "admission": rng.choice(("chunk", "full_prompt")),
    }
    if lesson >= 12:
        options["cpu_blocks"] = 0 if options["prefill_first"] else rng.choice((0, 20, 400))
    if lesson >= 13:
        options |= {
            "admission": rng.choice(("chunk", "full_prompt", "to_completion")),
            "skip_blocked": rng.random() < 0.3,
            "preempt_for_priority": policy == "priority" and rng.random() < 0.5,
            "aging_per_step": rng.choice((0, 1e-9, 0.5)) if policy == "priority" else 0,
        }
    return Config(**options)


def scheduler_of(rng: Random, lesson: int):
    if lesson == 8:
        return StaticBatcher(rng.choice((1, 3, 8)))
    if lesson == 9:
        return ContinuousBatcher(rng.choice((1, 3, 8)))
    config = any_config(rng, lesson)
    if lesson == 10:
        scheduler = Scheduler(config)
        if rng.random() < 0.4:
            scheduler.meter = ThrashMeter(5)
        return scheduler
    if lesson == 11:
        return ChunkedScheduler(config)
    policy = rng.choice((None, None, ToTheBack)) if config.policy == "fcfs" else None
    if lesson == 12:
        return SwappingScheduler(config, policy and policy(), rng.choice((None, *VICTIM_KEYS.values())))
    share = FairShare() if config.policy == "fcfs" and rng.random() < 0.3 else None
    return FairScheduler(config, share)


def engine_of(seed: int, lesson: int) -> tuple[Engine, int]:
    rng = Random(seed)
    scheduler = scheduler_of(rng, lesson)
    cost = rng.choice(COSTS)
    runner = SwapRunner(cost) if lesson >= 12 and rng.random() < 0.8 else CostRunner(cost)
    longest = rng.choice((12, 300, 900))
    return Engine(scheduler, runner, load(rng, longest)), rng.choice((5, 77, 3000, 3000))


def everything(report, requests, scheduler) -> dict:
    """All that a run leaves behind; the requests that never ended too, with their block tables."""
    noted = {key: value for key, value in vars(report).items() if key not in ("unfinished", "refused")}
    noted["unfinished"] = [request.id for request in report.unfinished]
    noted["refused"] = [(request.id, str(error)) for request, error in report.refused]
    noted["json"] = report.to_json()
    pool = getattr(scheduler, "pool", None)
    noted["pool"] = pool and (pool.free_blocks, pool.num_free, bytes(pool.is_free))
    noted["requests"] = [
        (r.id, len(r.output), r.num_tokens, r.num_computed_tokens, r.blocks, r.num_preemptions, r.finish_reason)
        for r in requests
    ]
    return noted


def compare(lesson: int, seed: int) -> int:
    """Steps that were jumped."""
    plain, most = engine_of(seed, lesson)
    fast, _ = engine_of(seed, lesson)
    stepped = []
    take = fast.step
    fast.step = lambda: stepped.append(1) or take()  # type: ignore[method-assign]
    slow_requests, fast_requests = list(plain.arrivals), list(fast.arrivals)
    want = everything(plain.run(most), slow_requests, plain.scheduler)
    got = everything(fast.run(most, fast=True), fast_requests, fast.scheduler)
    for key, value in want.items():
        assert got[key] == value, f"s{lesson:02}, seed {seed}: {key}"
    assert plain.clock_ns == fast.clock_ns
    return plain.report.steps - len(stepped)


@pytest.mark.parametrize("lesson", range(8, 14))
@pytest.mark.parametrize("part", range(4))
def test_a_jump_changes_nothing(lesson, part):
    jumped = sum(compare(lesson, 1000 * part + seed) for seed in range(60))
    assert jumped > 1000, "hardly anything was jumped: this compared a run with itself"


def decoding(*requests: Request) -> list[Request]:
    """As they are when each has just sampled its first token."""
    for request in requests:
        request.num_computed_tokens = len(request.prompt)
        request.output += [-1]
        request.num_tokens += 1
    return list(requests)


def test_steps_to_an_end_counts_the_last_one_and_is_one_where_nobody_knows():
    few, many = decoding(Request("A", range(5), 4), Request("B", range(9), 40))
    assert fastforward.steps_to_an_end([few, many]) == 3
    assert fastforward.steps_to_an_end([many]) == 39
    assert fastforward.steps_to_an_end([]) == 1
    assert fastforward.steps_to_an_end([many, Request("C", range(5), 9)]) == 1, "C has a prompt to compute"
    (stops,) = decoding(Request("D", range(5), 9, stop_token_ids=frozenset({7})))
    assert fastforward.steps_to_an_end([many, stops]) == 1, "D may sample the token that stops it"


def test_one_is_the_answer_under_a_meter():
    scheduler = Scheduler(Config())
    scheduler.add(Request("A", range(5), 40))
    batch = scheduler.schedule()
    scheduler.update(batch, {"A": [-1]})
    assert scheduler.steady_steps() == 39
    scheduler.meter = ThrashMeter()
    assert scheduler.steady_steps() == 1


def test_a_runner_that_cannot_price_ahead_never_jumps():
    class Slower(CostRunner):
        def execute(self, batch):
            tokens, step_ns = CostRunner.execute(self, batch)
            return tokens, 2 * step_ns

    scheduler = ContinuousBatcher(2)
    assert fastforward.possible(CostRunner(), scheduler)
    assert fastforward.possible(SwapRunner(), scheduler)
    assert not fastforward.possible(FakeRunner(), scheduler)
    assert not fastforward.possible(Slower(), scheduler), (
        "its `ahead` is inherited: it tells another price than its `execute`"
    )
    for runner in (FakeRunner, Slower):
        plain, fast = (Engine(ContinuousBatcher(2), runner(), [Request(c, range(3), 50) for c in "ABC"]) for _ in "ab")
        assert plain.run().end_ns == fast.run(fast=True).end_ns


def test_progress_is_told_every_thousand_steps_in_a_jump_too():
    told = []
    report = Engine(ContinuousBatcher(1), None, [Request("A", range(3), 2500, output=Count())]).run(
        watch=lambda: told.append(1), fast=True
    )
    assert report.num_steps == 2500
    assert told

"""The sweep loop against the engine: every step, end, first token and eviction, also where the pool is far too small."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import place  # noqa: F401  # puts solutions/ on the path
import pytest
from kit import sweep
from kit.config import Config
from kit.errors import BadConfig
from kit.request import Count, Request
from s03_step_cost import A100_LLAMA3_8B, H100_LLAMA31_8B
from s08_static_batching import CostRunner, Engine
from s11_chunked_prefill import ChunkedScheduler

COSTS = (A100_LLAMA3_8B, H100_LLAMA31_8B, replace(A100_LLAMA3_8B, attention_ns_per_kv_token=0.3))


def load(rng: Random) -> list[Request]:
    spread = rng.choice((0, 10**8, 10**9, 4 * 10**9))
    longest = rng.choice((12, 100, 900))
    requests = []
    for i in range(rng.randint(1, 30)):
        prompt = rng.randint(1, longest if rng.random() < 0.3 else max(1, longest // 8))
        output = 1 if rng.random() < 0.1 else rng.randint(1, rng.choice((5, 120)))
        requests.append(Request(f"r{i}", range(prompt), output, rng.randint(0, spread), output=Count()))
    return requests


def config(rng: Random) -> Config:
    block_size = rng.choice((1, 3, 16))
    budget = rng.choice((8, 20, 64, 300, 2048))
    return Config(
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, rng.choice((1, 3, 8, 64))),
        num_blocks=max(2, rng.choice((100, 300, 1000, 2000, 50_000)) // block_size),
        block_size=block_size,
        watermark=rng.choice((0.0, 0.01, 0.2)),
        admission=rng.choice(("chunk", "full_prompt")),
        long_prefill_token_threshold=rng.choice((0, 0, 1, 5, 40)),
    )


def compare(seed: int) -> int:
    """Evictions in the run."""
    made = config(Random(seed))
    cost = COSTS[seed % len(COSTS)]
    columns = sweep.Load(load(Random(seed + 1)))
    got = sweep.run(columns, made, cost)
    requests = load(Random(seed + 1))
    report = Engine(ChunkedScheduler(made), CostRunner(cost), requests).run()
    assert report.end == "done", f"seed {seed}: {report.diagnosis}"
    assert (got.steps, got.end_ns) == (report.num_steps, report.end_ns[-1] if report.end_ns else 0), f"seed {seed}: steps"
    rows = {row.id: row for row in report.rows}
    for i, name in enumerate(columns.ids):
        row = rows.get(name)
        seen = (got.first_token_ns[i], got.finish_ns[i], got.preemptions[i], got.recomputed_tokens[i])
        want = (row.first_token_ns, row.finish_ns, row.preemptions, row.recomputed_tokens) if row else (-1, -1, 0, 0)
        assert seen == want, f"seed {seed}, {name}: first token, finish, preemptions, recomputed tokens"
    assert got.total_preemptions == report.preemptions
    assert got.computed_tokens == report.computed_tokens
    assert got.finished == len(report.finished)
    assert got.tokens_per_s == report.tokens_per_s
    assert got.rec_new == report.rec_new
    if rows:
        assert got.ttft_ms(50) == report.ttft_ms(50)
    return got.total_preemptions


@pytest.mark.parametrize("part", range(6))
def test_the_sweep_loop_is_the_engine(part):
    evictions = sum(compare(10_000 * part + seed) for seed in range(60))
    assert evictions > 20, "hardly anything was evicted: the hard half was not compared"


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "shortest"},
        {"chunked_prefill": False},
        {"prefill_first": True},
        {"prefix_caching": True},
        {"preempt_for_priority": True},
        {"aging_per_step": 1},
        {"admission": "to_completion"},
        {"cpu_blocks": 10},
        {"skip_blocked": True},
        {"reject_unservable": False},
        {"max_model_len": 100},
        {"max_num_batched_tokens": 4, "max_num_seqs": 8, "allow_small_budget": True},
    ],
)
def test_what_the_loop_does_not_know_is_refused_by_name(options):
    with pytest.raises(BadConfig, match=f"sweep loop .* {next(iter(options))} is"):
        sweep.run(sweep.Load([]), Config(**options), A100_LLAMA3_8B)


def test_an_empty_load_and_one_that_is_refused_altogether():
    empty = sweep.run(sweep.Load([]), Config(), A100_LLAMA3_8B)
    assert (empty.steps, empty.end_ns, empty.tokens_per_s, empty.rec_new) == (0, 0, 0.0, 0.0)
    none = sweep.run(sweep.Load([Request("A", range(900), 9)]), Config(num_blocks=10), A100_LLAMA3_8B)
    assert (none.steps, none.finished, none.first_token_ns) == (0, 0, [-1])


def test_the_hour_is_synthetic_where_there_is_no_trace(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep.traces, "FOLDER", tmp_path)
    monkeypatch.delenv("COURSE_DATA", raising=False)
    sweep.hour.cache_clear()
    assert len(sweep.hour()) == 19_366
    said = sweep.rerun(max_num_batched_tokens=2048, admission="full_prompt")
    assert said.startswith("a synthetic hour like the Azure conversation trace")
    assert "modelled: A100, Llama-3-8B" in said
    sweep.hour.cache_clear()
    assert sweep.rerun() != said
    sweep.hour.cache_clear()


def test_a_grid_runs_every_combination_once_and_says_how_far_it_is():
    told: list[int] = []
    columns = sweep.Load(load(Random(1)))
    runs = sweep.grid(columns, A100_LLAMA3_8B, told.append, budgets=(64, 512), pools=(100, 400))
    assert [run[:3] for run in runs] == [(a, p, b) for a in ("chunk", "full_prompt") for p in (100, 400) for b in (64, 512)]
    assert told == list(range(1, 9))

"""s12's script, pictures and swaps: what the lesson says of its loads holds, and the KV that is swapped is really carried."""

from __future__ import annotations

import sys
import time
from random import Random
from xml.etree import ElementTree

import pytest
from place import ROOT

sys.path.insert(0, str(ROOT / "tests"))

import s12_preemption as s12
from kit import preemption, traces
from kit.config import Config
from kit.preemption_pictures import Setup, bills_svg, describe, frames, svg
from s11_chunked_prefill import ChunkedScheduler
from s13_fairness import FairScheduler
from support import Mismatch, Run, check_conservation, request


def test_the_bill_of_a_run_is_made_of_its_copies_and_repeats():
    for cpu in (0, 60):
        bill = preemption.Bill(s12)
        report = preemption.simulate(s12, traces.story_e(), bill, num_blocks=60, max_num_seqs=64, cpu_blocks=cpu)
        assert bill.again == report.thrown_away
        assert bill.copy_ns == bill.copies * bill.runner.block_ns
        assert (bill.again > 0, bill.copies > 0) == (cpu == 0, cpu > 0)


def test_thrash_with_long_prompts_costs_throughput_and_the_gate_cures_it():
    limits = {"num_blocks": 600, "max_num_seqs": 64, "max_num_batched_tokens": 512}
    ample = preemption.simulate(s12, preemption.long_prompts(), **{**limits, "num_blocks": 6000})
    chunk = preemption.simulate(s12, preemption.long_prompts(), **limits)
    whole = preemption.simulate(s12, preemption.long_prompts(), admission="full_prompt", **limits)
    assert chunk.tokens_per_s < 0.35 * ample.tokens_per_s and chunk.rec_new > 2
    assert whole.tokens_per_s > 1.5 * chunk.tokens_per_s and whole.preemptions < 5


def test_with_room_and_without_the_two_timelines_agree_in_what_they_make():
    for setup in (Setup(), Setup(machine=3, cpu_blocks=20), Setup(small=6, long=200), Setup(blocks=240)):
        run = frames(s12, setup)
        assert [frame.is_last for frame in run] == [False] * (len(run) - 1) + [True]
        for frame in (run[0], run[len(run) // 2], run[-1]):
            picture = svg(frame)
            ElementTree.fromstring(picture)
            assert describe(frame).split(":")[0] in picture
    recompute, swap = frames(s12, Setup())[-1].ways
    assert recompute.evictions == swap.evictions == 1 and recompute.bill_ms[-1] > swap.bill_ms[-1] > 0
    assert all(way.bill_ms[-1] == 0 for way in frames(s12, Setup(blocks=240))[-1].ways)


def test_the_same_setup_gives_the_same_picture_within_100_ms():
    start = time.process_time()
    first = svg(frames(s12, Setup())[-1])
    assert time.process_time() - start < 0.1
    assert svg(frames(s12, Setup())[-1]) == first


def test_the_plot_of_the_bills_is_well_formed():
    ElementTree.fromstring(bills_svg(s12))


@pytest.mark.parametrize("cpu_blocks, policy", [(10, "fcfs"), (20, "priority"), (20, "shortest")])
def test_the_model_s_kv_is_really_swapped(cpu_blocks, policy):
    pytest.importorskip("numpy", reason="NumPy is not installed: no model")
    from kit import stories
    from kit.tinylm import TinyLM, np
    from s06_paged_attention import PagedRunner

    model = TinyLM.load(dtype=stories.DTYPE)
    limits = {"max_num_batched_tokens": 96, "max_num_seqs": 4, "num_blocks": 20, "block_size": 8}
    scheduler = s12.SwappingScheduler(Config(**limits, cpu_blocks=cpu_blocks, policy=policy))
    runner = stories.CpuBlocks(PagedRunner(model, 20, 8), cpu_blocks)
    runner.runner.k[:] = runner.runner.v[:] = runner.k[:] = runner.v[:] = np.nan
    requests = stories.requests_of(model)
    report = s12.Engine(scheduler, runner, requests).run(2000)
    assert report.end == "done" and runner.copies > 0
    for one in requests:
        assert one.output == stories.alone(model, one.prompt, one.max_tokens), one.id
    check_conservation(scheduler, requests)


def urgent_run(seed: int, guarded: bool) -> None:
    """A random tight load in which urgent ones take seats from others (s13), its KV followed through every copy."""
    rng = Random(seed)
    size, seats = rng.randint(1, 3), rng.randint(1, 3)
    sizes = [
        (rng.randint(1, 8), rng.randint(2, 8), rng.randint(0, 14), rng.randint(0, 3)) for _ in range(rng.randint(3, 6))
    ]
    most = max(-(-(prompt + new - 1) // size) for prompt, new, *_ in sizes)
    blocks = most + rng.randint(0, most)
    limits = {
        "max_num_batched_tokens": 12,
        "max_num_seqs": seats,
        "num_blocks": blocks,
        "block_size": size,
        "watermark": 0.0,
    }
    aging = rng.choice([0, 0.1, 0.3, 0.5])
    scheduler = FairScheduler(
        Config(**limits, cpu_blocks=blocks, policy="priority", preempt_for_priority=True, aging_per_step=aging)
    )
    if not guarded:
        scheduler._park = lambda one: scheduler.swap_out(one) or ChunkedScheduler._park(scheduler, one)
    load = [request(f"R{i}", prompt, new, arrival=at, priority=q) for i, (prompt, new, at, q) in enumerate(sizes)]
    run = Run(scheduler, load)
    run.check_batch = lambda batch: run.check_memory(batch, run.at(run.now + 1))  # the KV alone
    run.to_end()


def test_a_step_that_swapped_somebody_in_swaps_nobody_out():
    """s13 evicts in its admission pass: without the rule in `_park` a copy would read KV that has not arrived."""
    caught = 0
    for seed in range(300):
        urgent_run(seed, guarded=True)
        try:
            urgent_run(seed, guarded=False)
        except Mismatch as error:
            assert "a swap went wrong" in str(error)
            caught += 1
    assert caught, "no load shows what the rule is for"

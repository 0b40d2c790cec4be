"""What s14 claims beside the replay: the bug hunt and its witness, the safe mode, a worker that sees only messages, the orders."""

from __future__ import annotations

import gzip
import json

import pytest
from kit import unified
from kit.config import Config
from kit.replay import translate
from kit.worker import Worker, WorkerError, message
from place import ROOT
from s14_unified_scheduler import LongestPrefixFirst, UnifiedScheduler

ABORTS = ROOT / "tests/data/vllm/aborts.jsonl.gz"


def config_of(workload: dict) -> Config:
    return Config.from_dict(translate({**workload["config"], "allow_small_budget": True}, "s14"))


def test_a_real_model_bears_witness_to_the_bug_and_safe_mends_it():
    pytest.importorskip("numpy", reason="NumPy is not installed: no model can be run")
    wrong = {one.id: one for one in unified.hunt(UnifiedScheduler)}
    assert wrong["L"].text != wrong["L"].alone and wrong["H"].text == wrong["H"].alone
    assert wrong["L"].found == 60, "56 tokens were computed; the block behind them has a name, and no KV"
    for verdict in unified.hunt(lambda config: UnifiedScheduler(config, safe=True)):
        assert verdict.text == verdict.alone
        assert verdict.found in (0, 56)


def test_the_safe_mode_changes_no_output_of_a_recorded_workload():
    for workload in unified.recorded():
        if workload["config"]["enable_prefix_caching"]:
            requests = unified.requests_of(workload)
            seen = unified.decide(UnifiedScheduler(config_of(workload), safe=True), requests)
            assert {one.id: out for one, out in zip(requests, seen.outputs)} == workload["trace"]["outputs"], workload[
                "name"
            ]


@pytest.mark.parametrize("safe", [False, True])
def test_a_worker_knows_what_the_scheduler_knows_on_every_recorded_workload(safe):
    with gzip.open(ABORTS, "rt", encoding="utf-8") as lines:
        workloads = [*unified.recorded(), *map(json.loads, lines)]
    seen = dict.fromkeys(("resumed", "aborted", "known"), 0)
    for workload in workloads:
        scheduler, worker, step = UnifiedScheduler(config_of(workload), safe), Worker(), 0
        arrivals = sorted(unified.requests_of(workload), key=lambda one: one.arrival_ns)
        while arrivals or scheduler.waiting or scheduler.running:
            while arrivals and arrivals[0].arrival_ns <= step:
                scheduler.add(arrivals.pop(0))
            seen["aborted"] += abort(scheduler, workload, step, "before")
            batch = scheduler.schedule()
            tokens = worker.receive(message(batch))
            for one in scheduler.running:
                known = worker.requests[one.id]
                assert (known.blocks, known.num_computed_tokens) == (one.blocks, one.num_computed_tokens), workload["name"]
                seen["known"] += 1
            victims = {one.id for one in scheduler.waiting if one.num_preemptions}
            assert set(worker.requests) == {one.id for one in scheduler.running} | victims
            seen["resumed"] += len(batch.resumed)
            seen["aborted"] += abort(scheduler, workload, step, "mid")
            scheduler.update(batch, tokens)
            step += 1
            assert step < 5000, workload["name"]
    assert min(seen.values()) > 30, seen


def abort(scheduler: UnifiedScheduler, workload: dict, step: int, when: str) -> int:
    asked = [one for one in workload.get("aborts", []) if (one["step"], one.get("when", "before")) == (step, when)]
    return sum(scheduler.abort(one["id"]) is not None for one in asked)


def test_a_worker_notices_a_message_that_was_lost():
    scheduler, worker = UnifiedScheduler(Config()), Worker()
    run = unified.drive(scheduler, [unified.Request("A", range(5), 9)])
    lines = [message(next(run)) for _ in range(3)]
    worker.receive(lines[0])
    with pytest.raises(WorkerError, match="A has 5 tokens computed, the message says 6"):
        worker.receive(lines[2])


def test_the_order_of_longest_prefixes_finds_more_and_its_bound_holds():
    served = {}
    for patience in (None, 8, float("inf")):
        scheduler = UnifiedScheduler(unified.order_config())
        if patience is not None:
            scheduler.waiting = LongestPrefixFirst(scheduler, patience)
        served[patience] = unified.serve(scheduler, unified.questions())
    assert served[None].hit < served[8].hit < served[float("inf")].hit
    assert served[None].passed == 0 and served[8].passed == 8 and served[float("inf")].passed > 50
    assert served[float("inf")].strangers > 1.3 * served[None].strangers, "somebody pays"

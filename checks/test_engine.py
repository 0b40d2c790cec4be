"""The engine, its report and its queue where a lesson's tests don't look: aborts in mid-step, ids used again, long queues."""

from __future__ import annotations

from math import isnan
from random import Random

import place  # noqa: F401  # puts solutions/ on the path
import pytest
from kit.config import Config
from kit.errors import BadConfig, BadRequest
from kit.request import Request
from kit.runner import FakeRunner
from kit.waiting import WaitingQueue
from s08_static_batching import Batch, Engine, StaticBatcher, latency
from s09_continuous_batching import ContinuousBatcher
from s10_scheduler import FCFS, Scheduler, ShortestFirst


class Stamping(FakeRunner):
    """Steps of random length; may abort a request while its step runs."""

    def __init__(self, rng: Random, abort_chance: float):
        super().__init__()
        self.rng, self.chance, self.engine = rng, abort_chance, None

    def execute(self, batch):
        tokens, _ = super().execute(batch)
        if self.rng.random() < self.chance:
            self.engine.abort(self.rng.choice(list(batch.tokens)).id)
        return tokens, self.rng.randint(1, 50)


@pytest.mark.parametrize("seed", range(60))
def test_rows_agree_with_an_independent_log_of_stamps_also_when_ids_are_used_again(seed):
    rng = Random(seed)
    config = Config(max_num_batched_tokens=24, max_num_seqs=4, num_blocks=9, block_size=4, watermark=0.0)
    load = [Request(f"r{i % 4}", range(rng.randint(1, 6)), rng.randint(1, 9), rng.randint(0, 400)) for i in range(12)]
    engine = Engine(Scheduler(config), Stamping(rng, 0.1), load)
    engine.runner.engine = engine
    stamps: dict[Request, list[int]] = {request: [request.arrival_ns] for request in load}
    ended = []
    while engine.arrivals or engine.scheduler.waiting or engine.scheduler.running:
        lengths = {request: len(request.output) for request in load}
        rows = len(engine.report.rows)
        batch = engine.step()
        for request in batch.tokens:
            if len(request.output) > lengths[request]:
                stamps[request].append(engine.clock_ns)
        ended += [row for row in engine.report.rows[rows:]]
    by_stamp = sorted((r.id, r.arrival_ns, s) for r, s in stamps.items() if r.finish_reason in ("length", "abort"))
    rows = sorted((row.id, row.arrival_ns, row) for row in ended)
    assert len(rows) == len(by_stamp)
    for (_, _, seen), (_, _, row) in zip(by_stamp, rows, strict=True):
        assert (row.first_token_ns is None) == (len(seen) == 1)
        if len(seen) > 1:
            want = latency(seen)
            assert (row.ttft_ns, row.longest_gap_ns) == (want.ttft_ns, want.longest_gap_ns)
            gaps = [later - earlier for earlier, later in zip(seen[1:], seen[2:])]
            assert engine.report.gaps(row) == sorted((gap, gaps.count(gap)) for gap in set(gaps))


def test_the_queue_stays_in_order_through_pushes_pops_and_removals():
    rng = Random(1)
    for policy in (FCFS(), ShortestFirst()):
        queue, model = WaitingQueue(policy.key), []
        for i in range(2000):
            move = rng.random()
            if move < 0.5 or not model:
                request = Request(f"r{i}", range(rng.randint(1, 9)), 1)
                request.order = i
                queue.push(request)
                model.append(request)
                model.sort(key=lambda one: (policy.key(one), one.order))
            elif move < 0.8:
                assert queue.pop() is model.pop(0)
            else:
                gone = model.pop(rng.randrange(len(model)))
                queue.remove(gone)
                if rng.random() < 0.5:
                    queue.push(gone)
                    model.append(gone)
                    model.sort(key=lambda one: (policy.key(one), one.order))
            assert len(queue) == len(model)
            if model:
                assert queue.head() is model[0]
        assert list(queue) == model


def test_removing_somebody_who_does_not_wait_is_an_error():
    queue = WaitingQueue(FCFS().key)
    with pytest.raises(ValueError, match="A is not waiting"):
        queue.remove(Request("A", [1], 1))


@pytest.mark.parametrize("kind", [StaticBatcher, ContinuousBatcher])
def test_a_scheduler_that_never_advances_is_stuck_and_not_a_hang(kind):
    class Forgetful(kind):
        def schedule(self):
            batch = Batch(tokens={request: 1 for request in self.running})
            if not self.running:
                self.running = [self.waiting.popleft()]
                batch.tokens[self.running[0]] = 1
            return batch

    report = Engine(Forgetful(2), None, [Request("A", range(5), 3)]).run()
    assert report.end == "stuck"
    assert "1 running" in report.diagnosis


def test_a_watermark_is_taken_as_written():
    assert Config(num_blocks=100, watermark=0.29).watermark_blocks == 29
    assert Config(num_blocks=180, watermark=0.35).watermark_blocks == 63
    assert Config(num_blocks=60, watermark=0.01).watermark_blocks == 0


def test_numbers_beyond_reason_are_refused_in_a_sentence():
    with pytest.raises(BadConfig, match="num_blocks is 1000000000; at most 100,000,000"):
        Config(num_blocks=1_000_000_000)
    with pytest.raises(BadRequest, match="more than 1,000,000,000 tokens"):
        Request("A", range(10**19), 1)


def test_a_request_that_has_ended_is_not_served_again():
    request = Request("A", [1, 2], 1)
    Engine(StaticBatcher(1), FakeRunner(), [request]).run()
    with pytest.raises(BadRequest, match="A has run already"):
        Engine(StaticBatcher(1), FakeRunner(), [request])


def test_steps_count_idle_ones_and_an_empty_report_has_no_numbers():
    load = [Request("A", [1], 1), Request("B", [1], 1, arrival_ns=1000)]
    report = Engine(StaticBatcher(1), FakeRunner(), load).run()
    assert report.summary()["steps"] == report.num_steps + report.idle_steps == 3
    empty = Engine(StaticBatcher(1)).run()
    assert empty.end == "done" and isnan(empty.ttft_ms(50)) and empty.to_json()["summary"]["ttft_ms"]["p50"] is None

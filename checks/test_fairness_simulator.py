"""s13's simulator: the same setup gives the same frames, and its picture says what the scheduler did."""

from __future__ import annotations

import time
from dataclasses import replace
from xml.etree import ElementTree

import place
import pytest
from kit.fairness_simulator import ORDERS, frames, presets, svg

every = pytest.mark.parametrize("name", presets())


@every
def test_a_preset_runs_to_its_end_the_same_way_twice(name):
    setup = presets()[name]
    run = frames(setup)
    assert run == frames(setup)
    assert sum(map(len, run[-1].ttft_ms.values())) == len(setup.load) and not run[-1].queue


@every
def test_nobody_sits_and_waits_at_once(name):
    for frame in frames(presets()[name]):
        here = [*filter(None, frame.seats), *frame.queue]
        assert len(here) == len(set(here))
        assert not set(frame.put_out) - set(frame.queue), "who is put out waits"
        assert frame.head or not frame.queue, "whoever waits has a reason"


@every
def test_a_picture_is_whole_and_quick(name):
    setup = presets()[name]
    run, classes = frames(setup), {id: group for id, *_, group in setup.load}
    for number in (1, len(run) // 2, len(run)):
        start = time.perf_counter()
        text = svg(run, number, setup.title, classes)
        assert time.perf_counter() - start < 0.1
        assert f"step {number:,} of {len(run):,}" in "".join(ElementTree.fromstring(text).itertext())


def test_the_presets_show_what_they_are_for():
    seat = frames(presets()["a seat"])
    assert [frame.put_out for frame in seat if frame.put_out] == [("B",)]
    alone = presets()["one old among urgent ones"]
    aged = frames(replace(alone, config=replace(alone.config, aging_per_step=2e-8)))
    begins = [next(f.number for f in run if "old" in f.seats) for run in (frames(alone), aged)]
    assert begins[1] < begins[0] / 2
    flood = presets()["a flood"]
    light = [max(frames(replace(flood, order=order))[-1].ttft_ms["light"]) for order in ("fcfs", "fair share")]
    assert light[1] < light[0] / 2
    blocked = presets()["a blocked head"]
    skipped = frames(replace(blocked, config=replace(blocked.config, skip_blocked=True)))
    assert skipped[-1].ttft_ms["large"][0] > 4 * frames(blocked)[-1].ttft_ms["large"][0]


@pytest.mark.parametrize("order", ORDERS)
def test_every_knob_turns(order):
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
    from kit.fairness_simulator import show

    box = show("a flood")
    (choice, orders, admission), (seats, aging, skip), (_, step) = (row.children for row in box.children[:3])
    screen = box.children[3]
    for name in presets():
        choice.value = name
        orders.value, seats.value, aging.value, skip.value = order, True, 5.0, True
        for mode in admission.options:
            admission.value = mode
            assert screen.value.startswith("<svg"), screen.value[:200]
        step.value = 1
        assert "step 1 of" in screen.value


@pytest.mark.parametrize("option", ["--ttft-target", "--tpot-target"])
@pytest.mark.parametrize("value", ["0", "-5", "nan", "soon"])
def test_a_target_that_nobody_can_meet_is_one_sentence(option, value):
    done = place.python("solutions/s13_fairness.py", option, value)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "above 0" in done.stderr

"""s14's simulator: its frames are what the scheduler decided, and its picture says it in the words of --explain."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import pytest
from place import ROOT, python

sys.path.insert(0, str(ROOT / "solutions"))

from kit.decisions import replay
from kit.drawing import WIDTH
from kit.explaining import explaining
from kit.parity import without_refund
from kit.trace_simulator import describe, frames, presets, svg
from s14_unified_scheduler import UnifiedScheduler

PRESETS = presets()
REFUND = PRESETS["R2: a victim that was scheduled already"]


def words(picture: str) -> str:
    return "\n".join(ET.fromstring(picture).itertext())


@pytest.mark.parametrize("name", PRESETS)
def test_frames_are_the_decisions_and_every_picture_is_svg(name):
    workload = PRESETS[name]
    film, decided = frames(workload), replay(workload, explaining(UnifiedScheduler))
    assert [frame.entry for frame in film] == decided.steps
    for frame, (_, told) in zip(film, decided.told, strict=True):
        assert [str(entry) for entry in frame.told] == [str(entry) for entry in told]
        assert {member.id: member.n for member in frame.members if member.n} == dict(frame.entry["sched"])
        owners = {block: {m.id for m in frame.members if block in m.blocks} for block in range(len(frame.owners))}
        assert all(set(frame.owners[block]) == owner for block, owner in owners.items())
        assert sum(not owner for owner in frame.owners) == frame.entry["free"][0]
        picture = svg(frame, key="x")
        assert ET.fromstring(picture).get("width") == str(WIDTH) and svg(frame, key="x") == picture


def test_all_frames_of_a_film_are_equally_high():
    for workload in PRESETS.values():
        film = frames(workload)
        assert len({ET.fromstring(svg(frame)).get("height") for frame in film}) == 1


def test_the_picture_shows_the_words_of_explain():
    said = words(svg(frames(REFUND)[13]))
    assert "r3 computes 4 of 8: R1 budget, 4 left; takes 1 block, 0 left free" in said
    assert "r1 evicted for r2: R2 r2 lacks 1 block, 0 free; r1 is the least urgent of running" in said
    assert "So far every decision is vLLM's." in said
    waits = words(svg(frames(PRESETS["the running example"])[3]))
    assert "R5 needs 2 blocks, 1 free" in waits and "C waits: R5 needs 2 blocks, 1 free" in waits


def test_a_request_narrows_the_sentences():
    frame = frames(REFUND)[13]
    said = words(svg(frame, "r3"))
    assert "What happened to r3, and why" in said and "r3 computes 4 of 8" in said and "r1 computes" not in said


def test_a_departure_from_vllm_is_shown_where_it_happens_and_after():
    film = frames(REFUND, without_refund(UnifiedScheduler))
    assert "So far" in describe(film[12]) and "departed from vLLM's decisions in step 13" in describe(film[14])
    assert "Departs from vLLM here, rule R2: tokens of r3, theirs 4, ours 3." in words(svg(film[13]))


def test_other_limits_are_not_compared():
    film = frames(REFUND, max_num_batched_tokens=9)
    assert not film[0].film.compared and "Not compared" in describe(film[0])
    assert frames(REFUND, max_num_batched_tokens=10)[0].film.compared


def test_the_simulator_needs_nothing_but_python():
    code = "from kit.trace_simulator import *; print(len(svg(frames(presets()['the running example'])[2])))"
    assert int(python("-S", "-c", code, cwd=ROOT / "solutions").stdout) > 1000


def test_the_knobs_move_the_picture():
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed: no knobs are tried")
    from kit.trace_widgets import EVERYBODY, TraceSimulator

    lab = TraceSimulator("R2: a victim that was scheduled already")
    lab.step.value = 14
    assert "step 13 · 14 of 25" in words(lab.picture.value)
    lab._picked("r3")
    assert lab.who.value == "r3" and "What happened to r3" in words(lab.picture.value)
    lab._picked("r3")
    assert lab.who.value == EVERYBODY
    lab.knobs["max_num_batched_tokens"].value = 9
    assert "Not compared" in words(lab.picture.value)
    lab.preset.value = "the running example"
    assert lab.step.value == 1 and "step 0 · 1 of 13" in words(lab.picture.value)
    lab.knobs["num_blocks"].value = 2
    assert "Not compared" in words(lab.picture.value) or "kit-error" in lab.picture.value

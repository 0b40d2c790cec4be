"""s11's simulator and script: pictures are pure, quick and well-formed; a mystery looks healthy until its limits are found."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache

import pytest
from kit.chunking_simulator import PRESETS, WAYS, Frame, Knobs, describe, frames, svg
from kit.errors import CourseError
from place import ROOT, python

SCRIPT = ROOT / "solutions/s11_chunked_prefill.py"
REDRAW_S = 0.1
presets = pytest.mark.parametrize("name", PRESETS)


@presets
def test_the_same_knobs_give_the_same_pictures(name):
    first, again = (frames(PRESETS[name]) for _ in range(2))
    assert [svg(frame) for frame in first] == [svg(frame) for frame in again]


@presets
def test_every_picture_is_well_formed_and_says_what_it_shows(name):
    run = frames(PRESETS[name])
    for frame in run:
        root = ET.fromstring(svg(frame))
        assert describe(frame) == root.get("aria-label")
        assert all(0 <= bar.now <= bar.stored <= bar.known <= bar.total for bar in frame.bars)
        assert 'width="-' not in svg(frame) and "width='-" not in svg(frame)
    assert [frame.number for frame in run] == list(range(1, len(run) + 1))


def test_a_knob_that_moves_redraws_in_a_tenth_of_a_second():
    def once() -> float:
        start = time.perf_counter()
        svg(frames(Knobs(budget=16, prompt=240, threshold=4, decoders=8))[-1])
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < REDRAW_S


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("budget", [8, 9, 40, 256])
@pytest.mark.parametrize("threshold", [0, 1, 128])
def test_whatever_the_knobs_say_everybody_ends_or_was_refused(way, budget, threshold):
    knobs = Knobs(way, budget, 120, 0 if way == "whole prompts" else threshold, 8)
    last = frames(knobs)[-1]
    open_ends = [bar.id for bar in last.bars if bar.state not in ("done", "rejected_budget")]
    assert not open_ends, f"{knobs}: {open_ends} neither ended nor were refused"
    assert all(column.tokens <= budget for column in last.columns)


def test_knobs_that_contradict_each_other_are_one_sentence():
    with pytest.raises(CourseError, match="it must be at least 0"):
        frames(Knobs(threshold=-1))


def test_without_chunks_a_threshold_changes_nothing():
    free, capped = (frames(Knobs("whole prompts", budget=192, threshold=n)) for n in (0, 8))
    assert [frame.columns for frame in capped] == [frame.columns for frame in free]


def test_the_bars_under_the_strip_are_the_longest_gap():
    mixed, unmixed = (frames(PRESETS[name])[-1] for name in ("mixed chunks", "chunks, prompts first"))
    assert mixed.longest == mixed.knobs.budget == max(column.gap for column in mixed.columns)
    paid = max(column.gap for column in unmixed.columns if column.paid)
    assert unmixed.longest == paid > 5 * unmixed.knobs.budget


def test_a_gap_that_is_still_open_is_in_the_headline():
    for frame in frames(PRESETS["chunks, prompts first"]):
        assert frame.longest == max(column.gap for column in frame.columns[: frame.number])


def test_a_threshold_lets_the_short_one_pass():
    def first(knobs: Knobs) -> Frame:
        return frames(knobs)[-1]

    free, capped = first(Knobs()), first(Knobs(threshold=20))
    assert free.first_token["L"] < free.first_token["S"]
    assert capped.first_token["S"] < capped.first_token["L"]
    assert first(replace(Knobs(), way="whole prompts", budget=256)).first_token["L"] == 5


@cache
def mystery(letter: str, *options: str) -> tuple[dict, dict]:
    """Summaries of the right scheduler and of a mystery, under the same limits."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "numbers.json"
        done = python(SCRIPT, "--mystery", letter, "--json", file, *options)
        assert done.returncode == 0, done.stderr
        numbers = json.loads(file.read_text("utf-8"))
    return numbers["as_it_was"]["summary"], numbers["mystery"]["summary"]


@pytest.mark.parametrize("letter", ["A", "B", "C"])
def test_a_mystery_looks_healthy_at_first(letter):
    right, wrong = mystery(letter)
    assert right == wrong


def test_the_first_mystery_pays_with_the_longest_gap():
    right, wrong = mystery("A", "--budget", "512")
    assert wrong["ttft_ms"]["p50"] < right["ttft_ms"]["p50"] / 2
    assert wrong["itl_ms"]["longest"] > 15 * right["itl_ms"]["longest"]


def test_the_second_mystery_wastes_what_is_left_of_a_step():
    right, wrong = mystery("B", "--budget", "128")
    assert wrong["tokens_per_s"] < 0.85 * right["tokens_per_s"]
    assert wrong["itl_ms"]["p99"] < right["itl_ms"]["p99"]


def test_the_third_mystery_never_evicts_and_starts_later():
    right, wrong = mystery("C", "--blocks", "200")
    assert wrong["preemptions"] == 0 < right["preemptions"]
    assert wrong["ttft_ms"]["p50"] > 1.1 * right["ttft_ms"]["p50"]

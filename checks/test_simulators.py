"""The simulators: their frames are what the scheduler decided, their picture says it, and both are quick and pure."""

from __future__ import annotations

import re
import shutil
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from place import ROOT, python

sys.path.insert(0, str(ROOT / "solutions"))

from kit.drawing import WIDTH, describe, svg
from kit.errors import CourseError
from kit.simulators import EXPLAIN_AT_ONCE, S08, S09, S10, Run, frames, load, presets, slots_setup, utilisation, why

EVERY = [(lesson, name) for lesson in (S08, S09, S10) for name in presets(lesson)]
every_preset = pytest.mark.parametrize(("lesson", "name"), EVERY, ids=[f"{lesson[:3]} {name}" for lesson, name in EVERY])

EXAMPLE = [  # what each step computes, who was evicted, blocks in use
    ("A3 B4", "", 2),
    ("A1 B1 C5", "", 5),
    ("A1 B1", "C", 4),
    ("A1 B1", "", 4),
    ("A1 B1", "", 4),
    ("A1 C6", "", 4),
    ("C1 D2", "", 3),
    ("D1", "", 1),
    ("D1", "", 1),
]


@pytest.fixture(scope="module")
def run():
    """A function that returns the frames of a preset, run once."""
    done: dict[tuple[str, str], list] = {}

    def get(name: str, lesson: str = S10):
        if (lesson, name) not in done:
            done[lesson, name] = frames(presets(lesson)[name])
        return done[lesson, name]

    return get


def words(picture: str) -> str:
    return "\n".join(ET.fromstring(picture).itertext())


def test_the_running_example_has_its_nine_steps(run):
    seen = [
        (
            " ".join(f"{request.id}{n}" for request, n in frame.batch.tokens.items()),
            " ".join(request.id for request in frame.batch.preempted),
            frame.used_blocks,
        )
        for frame in run("running example")
    ]
    assert seen == EXAMPLE


def test_a_step_tells_decode_prefill_and_recompute_apart(run):
    example = run("running example")
    kinds = [[f"{request.id} {kind} {n}" for request, n, kind in frame.kinds] for frame in example]
    assert kinds[0] == ["A prefill 3", "B prefill 4"]
    assert kinds[1] == ["A decode 1", "B decode 1", "C prefill 5"]
    assert kinds[5] == ["A decode 1", "C recompute 6"]


def test_a_waiting_request_names_rule_numbers_and_who_is_to_blame(run):
    example, story_a, twin = run("running example"), run("story A: stuck behind the head"), run("evil twin")
    d = why(example[1], "D")
    assert (d.rule, d.text, d.blame) == ("budget", "needs 2 tokens, 1 left", "C")
    c = why(example[3], "C")
    assert (c.rule, c.text, c.blame) == ("blocks", "needs 2 blocks, 1 to be had", "A")
    behind = why(example[3], "D")
    assert (behind.rule, behind.blame) == ("behind", "C")
    assert why(story_a[-1], "r40").blame == "r14"
    assert why(story_a[-1], "r14").blame == "r14"
    assert "waits for ever" in why(twin[-1], "B").blame_text
    assert why(example[0], "A") is None, "A does not wait"
    short = next(frame for frame in run("twenty requests") if frame.batch.head and frame.batch.head.rule == "blocks")
    blame = why(short, short.waiting[0][0].id).blame
    assert blame == max(short.running, key=lambda member: len(member.blocks)).request.id == "r1"


def test_the_presets_come_out_as_the_stories_say(run):
    story_a, budget_128, twenty = (
        run(n) for n in ("story A: stuck behind the head", "twenty, budget 128", "twenty requests")
    )
    assert (story_a[-1].totals.finished, len(story_a[-1].waiting), story_a[-1].is_stuck) == (14, 46, True)
    assert (budget_128[-1].totals.finished, budget_128[-1].is_stuck) == (3, True)
    assert (twenty[-1].totals.finished, twenty[-1].totals.preemptions, twenty[-1].is_stuck) == (20, 0, False)
    thrash = run("thrash")[-1].totals
    assert thrash.refused == 0 and thrash.finished == 15 and thrash.preemptions >= 5
    assert run("evil twin")[-1].is_stuck and len(run("evil twin")) == 9


def test_a_preset_without_the_check_says_so(run):
    for name, setup in presets().items():
        said = "reject_unservable=False" in words(svg(run(name)[0]))
        assert said == (not setup.config.reject_unservable)


@every_preset
def test_the_counters_agree_with_the_report(run, lesson, name):
    steps = run(name, lesson)
    report, totals = steps[0].run.report, steps[-1].totals
    assert totals.finished == len(report.finished)
    assert totals.preemptions == report.preemptions
    assert totals.recomputed_tokens == report.thrown_away
    assert totals.prefill_tokens + totals.decode_tokens == report.computed_tokens
    if not report.unfinished:
        ttft = [row.ttft_ms for row in report.rows]
        assert totals.ttft_mean_ms == pytest.approx(sum(ttft) / len(ttft))
        assert totals.ttft_p95_ms == pytest.approx(report.ttft_ms(95))


@every_preset
def test_every_request_is_in_one_place_and_no_block_has_two_owners(run, lesson, name):
    for frame in run(name, lesson):
        running = [member.request.id for member in frame.running]
        waiting = [request.id for request, _ in frame.waiting]
        assert len(set(running + waiting)) == len(running + waiting)
        blocks = [block for member in frame.running for block in member.blocks]
        assert len(set(blocks)) == len(blocks) <= frame.run.setup.config.num_blocks


@every_preset
def test_a_picture_is_well_formed_and_holds_every_waiting_id_or_their_number(run, lesson, name):
    steps = run(name, lesson)
    for frame in {0: steps[0], 1: steps[len(steps) // 2], 2: steps[-1]}.values():
        picture = svg(frame, key="x", on_click='f("<&>")')
        root = ET.fromstring(picture)
        assert int(root.get("width")) == WIDTH
        assert describe(frame) in picture.replace("&#x27;", "'")
        waiting = [g.get("data-id") for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("class") == "waiting"]
        shown = re.findall(r"\+ (\d+) more(?: behind)?\n", words(picture) + "\n")
        assert len(waiting) == len(frame.waiting) or shown
        assert "NaN" not in picture and "nan" not in picture


def test_the_same_setup_gives_the_same_picture():
    first, second = (svg(frames(presets()["thrash"])[200]) for _ in range(2))
    assert first == second


def test_a_long_queue_s_reasons_are_looked_up_when_asked(run):
    last = run("story A: stuck behind the head")[-1]
    assert len(last.waiting) > EXPLAIN_AT_ONCE
    last._reasons = None
    assert list(last.reasons) == [request.id for request, _ in last.waiting]
    assert last.reasons["r14"].rule == "budget"


def test_a_pinned_run_is_drawn_and_named():
    setup = presets()["running example"]
    pinned, wide = Run(setup), Run(replace(setup, config=replace(setup.config, num_blocks=8)))
    picture = svg(wide.frames[-1], pinned=pinned)
    assert picture.count("class='ghost'") == 3
    assert "budget 8, 5 blocks: 4 of 4 finished" in words(picture)
    assert "class='ghost'" not in svg(wide.frames[-1])


def test_the_future_is_not_drawn(run):
    early = svg(run("twenty requests")[3])
    assert len(early) < len(svg(run("twenty requests")[-1]))
    assert "of 20" in words(early) and words(early).count("20 of 20") == 0


def test_static_wastes_what_continuous_uses():
    static, continuous = frames(slots_setup(S08)), frames(slots_setup(S09))
    tokens = sum(entry[2] for entry in slots_setup(S08).load)
    for steps in (static, continuous):
        slots = steps[0].run.setup.config.max_num_seqs
        assert utilisation(steps) == tokens / (slots * len(steps))
        held = [(slot, step) for slot, _, first, last in steps[0].run.slots for step in range(first, last + 1)]
        assert len(held) == len(set(held)) == tokens, "one request a slot and step"
        assert max(slot for slot, _ in held) < slots
    assert len(continuous) < len(static)
    picture = words(svg(continuous[-1], versus=static[len(continuous) - 1]))
    assert picture.index("Static batching") < picture.index("Continuous batching")


def test_limits_that_no_scheduler_can_work_with_are_refused_in_words():
    setup = presets()["running example"]
    with pytest.raises(CourseError, match="token budget 3 is smaller than max_num_seqs 4"):
        frames(replace(setup, config=replace(setup.config, max_num_batched_tokens=3)))


def test_an_id_that_looks_like_markup_stays_text():
    setup = presets()["running example"]
    odd = tuple((f"<b>{i}'\"&", *entry[1:]) for i, entry in enumerate(setup.load))
    root = ET.fromstring(svg(frames(replace(setup, load=odd))[1], on_click="go('x')"))
    assert any(g.get("data-id") == "<b>3'\"&" for g in root.iter("{http://www.w3.org/2000/svg}g"))


def test_frames_of_the_twenty_requests_take_under_20_ms_of_cpu():
    setup = presets()["twenty requests"]
    taken = []
    for _ in range(5):
        start = time.process_time()
        steps = frames(setup)
        taken.append(1000 * (time.process_time() - start))
    assert len(steps) > 700
    assert min(taken) < 20, f"{min(taken):.1f} ms"


@every_preset
def test_a_picture_takes_under_50_ms_of_cpu(run, lesson, name):
    steps = run(name, lesson)
    svg(steps[0])  # what a run computes once
    start = time.process_time()
    for frame in steps[:: max(1, len(steps) // 10)]:
        svg(frame)
    shown = len(steps[:: max(1, len(steps) // 10)])
    assert 1000 * (time.process_time() - start) / shown < 50


def test_load_is_plain_data():
    from kit import traces

    assert load(traces.running_example())[0] == ("A", 3, 6, 0, 0)


def test_a_simulator_runs_on_the_learner_s_cut_and_the_standard_library_alone(fresh):
    code = (
        "import sys; sys.path.insert(0, 'code'); from kit.simulators import *; from kit.drawing import svg; "
        "print(len(svg(frames(presets()['twenty requests'])[400])) > 5000, 's10_scheduler' in sys.modules)"
    )
    done = python("-c", code, cwd=fresh)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_the_pictures_in_the_lessons_are_fresh():
    done = python("tools/figures.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def simulator():
    """The simulator's knobs without a browser."""
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed: the knobs are not tried")
    from kit.widgets import Simulator

    return Simulator


def test_knobs_that_make_no_sense_say_so_in_place_of_the_picture(simulator):
    knobs = simulator(S10)
    knobs.knobs["max_num_batched_tokens"].value = 3
    assert "token budget 3 is smaller than max_num_seqs 4" in knobs.picture.value
    knobs.knobs["max_num_seqs"].value = 3
    assert knobs.picture.value.startswith("<svg")


def test_a_scheduler_that_raises_is_named_in_place_of_the_picture(simulator, monkeypatch):
    from s10_scheduler import Scheduler

    knobs = simulator(S10)
    monkeypatch.setattr(Scheduler, "pick_victim", lambda self: self.running[99])
    knobs.run()
    assert "IndexError: list index out of range (test_simulators.py, line" in knobs.picture.value
    monkeypatch.undo()
    knobs.run()
    assert knobs.picture.value.startswith("<svg")


def test_a_reason_that_is_no_reason_is_named_too(simulator, monkeypatch):
    from s10_scheduler import Scheduler

    monkeypatch.setattr(Scheduler, "explain", lambda self, batch: dict.fromkeys([r.id for r in self.waiting], "later"))
    assert "AttributeError" in simulator(S10).picture.value


def test_every_preset_sets_every_knob(simulator):
    knobs = simulator(S10)
    for name, setup in knobs.presets.items():
        knobs.preset.value = name
        assert {key: knob.value for key, knob in knobs.knobs.items()} == {
            key: getattr(setup.config, key) for key in knobs.knobs
        }
        assert knobs.step.value == 1 and not knobs.prediction.disabled
        assert all((k.value - k.min) % k.step == 0 for k in list(knobs.knobs.values())[:3]), "the page would round it"


def test_a_lesson_that_does_not_compile_is_named_and_the_version_before_stays(fresh, tmp_path):
    course = shutil.copytree(fresh, tmp_path / "course")
    code = """
import sys; sys.path.insert(0, "code")
from pathlib import Path
from kit import lab
s09 = lab.start("s09_continuous_batching")
file = Path("code/s09_continuous_batching.py")
text = file.read_text("utf-8")
file.write_text(text + "def broken(:", "utf-8")
print(lab.reload(), s09.ContinuousBatcher(2).max_num_seqs)
file.write_text(text.replace("raise NotImplementedError", "return Batch()", 1), "utf-8")
print(lab.reload(), lab.reload())
"""
    out = python("-c", code, cwd=course)
    assert out.returncode == 0, out.stderr
    lines = out.stdout.splitlines()
    assert lines[0].startswith("s09_continuous_batching: borrowed: schedule")
    assert "s09_continuous_batching.py can't be loaded: SyntaxError" in lines[1]
    assert lines[2] == "False 2"
    assert lines[3:] == [
        "reloaded s09_continuous_batching",
        "s09_continuous_batching: yours: schedule | borrowed: refill, retire, speedup_bound",
        "True False",
    ]


def test_a_prediction_is_judged():
    from kit.lab import judge

    assert judge(..., 6, "steps").endswith("Measured: 6 steps.")
    assert judge(5, 6, "steps") == "You predicted 5, measured: 6 steps."
    assert judge(6, 6, "steps") == "Predicted and measured: 6 steps."
    assert judge("chat", 1234.5678) == "You predicted chat, measured: 1,234.57."

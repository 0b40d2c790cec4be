"""The simulators' knobs: ipywidgets around kit.simulators.frames and kit.drawing.svg. Nothing is decided here."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from itertools import count
from pathlib import Path
from traceback import extract_tb
from typing import Any

import ipywidgets as w

from kit.config import POLICIES
from kit.drawing import describe, svg
from kit.errors import CourseError
from kit.simulators import S08, S09, S10, Frame, Run, Setup, presets, slots_setup

# A click in the picture reaches Python through a hidden text field: plain HTML, so it needs no extension. Where a page
# forbids scripts, the menu "why does … wait?" does the same.
CLICK = (
    'const field = this.closest(".kit-simulator").querySelector(".kit-click input");'
    'field.value = this.dataset.id; field.dispatchEvent(new Event("input", {bubbles: true}));'
    'field.dispatchEvent(new Event("change", {bubbles: true}));'
)
NARROW, WIDE = w.Layout(width="300px"), w.Layout(width="440px")
STYLE = {"description_width": "86px"}
_keys = count()


def complaint(error: Exception) -> str:
    """One sentence in place of a picture; for what is no error of the course's, with the line that raised it."""
    words = str(error)
    if not isinstance(error, CourseError):
        last = extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno}, in {last.name})"
    return f"<div class='kit-error' style='padding:1em;color:#D55E00'>{escape(words)}</div>"


class Simulator(w.VBox):
    """The simulator of one lesson. s08 shows static batching, s09 both kinds, s10 the scheduler with its limits."""

    def __init__(self, lesson: str = S10, preset: str | None = None):
        self.lesson, self.key = lesson, f"k{next(_keys)}"
        self.presets = presets(lesson)
        self.frames: list[Frame] = []
        self.others: list[Frame] = []
        self.pinned: Run | None = None
        self.quiet = False  # while True a changed knob redraws nothing: several are being set together
        names = list(self.presets)
        self.preset = w.Dropdown(options=names, value=preset or names[0], description="preset", layout=WIDE, style=STYLE)
        self.knobs: dict[str, Any] = {}
        self.knob_rows, self.player = w.VBox(), w.HBox()
        self.play: Any = None  # these two are made anew for a run of another length
        self.step: Any = None
        self.waits = w.Dropdown(options=["the head"], description="why waits …", layout=NARROW, style=STYLE)
        self.clicked = w.Text(layout=w.Layout(display="none"))
        self.clicked.add_class("kit-click")
        self.pin = w.ToggleButton(description="pin this run", tooltip="keep this run as a dashed line under the next ones")
        self.guess = w.HBox()
        self.prediction = _slider("I predict", 0, 0, 1)
        self.lock = w.ToggleButton(description="lock", layout=w.Layout(width="80px"))
        self.question, self.verdict = w.HTML(), w.HTML()
        self.picture = w.HTML()
        first = [self.preset, self.pin] if len(self.presets) > 1 else [self.pin]
        super().__init__(
            [w.HBox(first), self.knob_rows, self.guess, self.player, self.picture, w.HBox([self.waits, self.clicked])]
        )
        self.add_class("kit-simulator")
        self.preset.observe(lambda _: self.choose(), "value")
        self.waits.observe(lambda _: self.draw(), "value")
        self.clicked.observe(lambda change: self._picked(change["new"]), "value")
        self.pin.observe(lambda _: self._pin(), "value")
        self.lock.observe(lambda _: self._lock(), "value")
        self.choose()

    def choose(self) -> None:
        """A preset was chosen: new knobs, a new prediction, the first step."""
        setup, old = self.presets[self.preset.value], [*self.knobs.values(), self.prediction]
        self.knobs = self._limits(setup) if self.lesson == S10 else self._lengths()
        for knob in self.knobs.values():
            knob.observe(lambda _: self.run(), "value")
        rows = list(self.knobs.values())
        self.knob_rows.children = [w.HBox(rows[:2]), w.HBox(rows[2:])]
        if setup.question:
            self.question.value = f"<b>Predict first.</b> {escape(setup.question.words)}"
            self.prediction = _slider("I predict", 0, 0, setup.question.top)
            self.guess.children = [self.question, self.prediction, self.lock, self.verdict]
        for knob in old:
            knob.close()
        self.lock.value = False
        self.run(first=True)

    def _limits(self, setup: Setup) -> dict[str, Any]:
        config = setup.config
        budget, blocks, seats = config.max_num_batched_tokens, config.num_blocks, config.max_num_seqs
        longest = max(prompt + output for _, prompt, output, *_ in setup.load)
        return {
            "max_num_batched_tokens": _slider("budget", budget, budget // 8, max(2 * budget, longest), budget // 64),
            "num_blocks": _slider("KV blocks", blocks, blocks // 8, 2 * blocks, blocks // 60),
            "max_num_seqs": _slider("seats", seats, 1, 2 * seats),
            "policy": w.Dropdown(options=POLICIES, value=config.policy, description="policy", layout=NARROW, style=STYLE),
        }

    def _lengths(self) -> dict[str, Any]:
        share, gap = {"min": 0.0, "max": 1.0, "step": 0.05}, {"min": 0.0, "max": 100.0, "step": 5.0}
        return {
            "slots": _slider("slots", 4, 1, 16),
            "count": _slider("requests", 8, 1, 60),
            "spread": w.FloatSlider(1.0, description="spread", layout=NARROW, style=STYLE, **share),
            "gap_ms": w.FloatSlider(0.0, description="gap, ms", layout=NARROW, style=STYLE, **gap),
        }

    def setup(self) -> Setup:
        """What the knobs say. CourseError for limits that no scheduler can work with."""
        values = {name: knob.value for name, knob in self.knobs.items()}
        if self.lesson != S10:
            return slots_setup(self.lesson, **values)
        setup = self.presets[self.preset.value]
        return replace(setup, config=replace(setup.config, **values))

    def run(self, first: bool = False) -> None:
        """Run what the knobs say from its first request to its last, and show the step that the slider is at."""
        if self.quiet:
            return
        try:
            setup = self.setup()
            self.frames = Run(setup).frames
            self.others = Run(replace(setup, lesson=S08)).frames if self.lesson == S09 else []
        except Exception as error:  # a scheduler that is being written may raise anything
            self._complain(error)
            return
        steps = max(len(self.frames), len(self.others))
        if self.step is None or first or steps != self.step.max:
            self._new_player(1 if first or self.step is None else min(self.step.value, steps), steps)
        self.draw()

    def _new_player(self, value: int, steps: int) -> None:
        old = [control for control in (self.play, self.step) if control]
        self.play = w.Play(value, min=1, max=steps, step=max(1, steps // 150), interval=150, show_repeat=False)
        self.step = _slider("step", value, 1, steps)
        self.step.layout = w.Layout(width="600px")
        w.jslink((self.play, "value"), (self.step, "value"))
        self.step.observe(lambda _: self._moved(), "value")
        self.player.children = [self.play, self.step]
        for control in old:
            control.close()

    @property
    def frame(self) -> Frame:
        return self.frames[min(self.step.value, len(self.frames)) - 1]

    def draw(self) -> None:
        """Show the current step."""
        if self.quiet or not self.frames:
            return
        frame = self.frame
        versus = self.others[min(self.step.value, len(self.others)) - 1] if self.others else None
        ids = [request.id for request, _ in frame.waiting]
        selected = self.waits.value if self.waits.value in ids else None
        try:
            self.picture.value = svg(frame, selected, self.pinned, versus, CLICK, self.key)
        except Exception as error:  # the reasons are the scheduler's own too
            self._complain(error)
            return
        self.quiet = True
        self.waits.options = ["the head", *ids]
        self.waits.value = selected or "the head"
        self.quiet = False
        self._judge()

    def _complain(self, error: Exception) -> None:
        self.frames = []
        self.picture.value = complaint(error)

    def _picked(self, request_id: str) -> None:
        if request_id in self.waits.options:
            self.waits.value = request_id
        self.clicked.value = ""  # so that a second click on the same request is news

    def _moved(self) -> None:
        """The first move locks the prediction: nobody predicts what they have seen."""
        if not self.quiet:
            if self.step.value > 1:
                self.lock.value = True
            self.draw()

    def _lock(self) -> None:
        self.prediction.disabled = self.lock.disabled = self.lock.value
        self.lock.description = "locked" if self.lock.value else "lock"
        self._judge()

    def _judge(self) -> None:
        """The answer, once it has been played to the end."""
        question = self.presets[self.preset.value].question
        if not question or not self.lock.value:
            self.verdict.value = ""
        elif self.step.value < self.step.max:
            self.verdict.value = "Now play to the end."
        else:
            answer, mine = question.answer(self.frames), self.prediction.value
            right = "Right: " if answer == mine else f"You said {mine:,}, it is "
            self.verdict.value = "<b>" + f"{right}{answer:,} {question.unit}".rstrip() + ".</b>"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """In place of ipywidgets' dump of every knob: the frame in a sentence, for a page on which widgets don't run."""
        text = describe(self.frame) if self.frames else "The simulator could not run."
        return {**(super()._repr_mimebundle_(**options) or {}), "text/plain": text}

    def _pin(self) -> None:
        self.pinned = self.frames[0].run if self.pin.value and self.frames else None
        self.pin.description = "unpin" if self.pinned else "pin this run"
        self.draw()


def _slider(name: str, value: int, low: int, high: int, step: int = 1) -> w.IntSlider:
    """A slider for good: it is replaced, never given other limits. In the page one that gets new limits clamps the value
    that it had before and sends that back, and its End key still goes to the old end.
    """
    step = max(1, step)
    low = value - (value - max(low, 0 if value == 0 else 1)) // step * step  # the value is one that the slider can take
    return w.IntSlider(value, low, high, step, description=name, layout=NARROW, style=STYLE)

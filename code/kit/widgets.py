"""The simulators' knobs: ipywidgets around kit.simulators.frames and kit.drawing.svg. Nothing is decided here."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from itertools import count
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
        self.knobs = self._knobs()
        self.play = w.Play(interval=150, show_repeat=False)
        self.step = w.IntSlider(min=1, description="step", layout=w.Layout(width="600px"), style=STYLE)
        w.jslink((self.play, "value"), (self.step, "value"))
        self.waits = w.Dropdown(options=["the head"], description="why waits …", layout=NARROW, style=STYLE)
        self.clicked = w.Text(layout=w.Layout(display="none"))
        self.clicked.add_class("kit-click")
        self.pin = w.ToggleButton(description="pin this run", tooltip="keep this run as a dashed line under the next ones")
        self.prediction = w.IntSlider(description="I predict", layout=NARROW, style=STYLE)
        self.lock = w.ToggleButton(description="lock", layout=w.Layout(width="80px"))
        self.question, self.verdict = w.HTML(), w.HTML()
        self.picture = w.HTML()
        super().__init__(self._rows())
        self.add_class("kit-simulator")
        for knob in self.knobs.values():
            knob.observe(lambda _: self.run(), "value")
        self.preset.observe(lambda _: self.choose(), "value")
        self.step.observe(lambda _: self._moved(), "value")
        self.waits.observe(lambda _: self.draw(), "value")
        self.clicked.observe(lambda change: self._picked(change["new"]), "value")
        self.pin.observe(lambda _: self._pin(), "value")
        self.lock.observe(lambda _: self._lock(), "value")
        self.choose()

    def _knobs(self) -> dict[str, Any]:
        def slider(name: str, value: int, low: int, high: int, **more: Any) -> w.IntSlider:
            return w.IntSlider(value, low, high, description=name, layout=NARROW, style=STYLE, **more)

        if self.lesson == S10:
            policy = w.Dropdown(options=POLICIES, description="policy", layout=NARROW, style=STYLE)
            return {
                "max_num_batched_tokens": slider("budget", 8, 1, 16),
                "num_blocks": slider("KV blocks", 5, 1, 10),
                "max_num_seqs": slider("seats", 4, 1, 8),
                "policy": policy,
            }
        spread = w.FloatSlider(1.0, min=0.0, max=1.0, step=0.05, description="spread", layout=NARROW, style=STYLE)
        gap = w.FloatSlider(0.0, min=0.0, max=100.0, step=5.0, description="gap, ms", layout=NARROW, style=STYLE)
        return {
            "slots": slider("slots", 4, 1, 16),
            "count": slider("requests", 12, 1, 60),
            "spread": spread,
            "gap_ms": gap,
        }

    def _rows(self) -> list[Any]:
        knobs = list(self.knobs.values())
        first = [self.preset, self.pin] if len(self.presets) > 1 else [self.pin]
        return [
            w.HBox(first),
            w.HBox(knobs[:2]),
            w.HBox(knobs[2:]),
            w.HBox([self.question, self.prediction, self.lock, self.verdict]),
            w.HBox([self.play, self.step]),
            self.picture,
            w.HBox([self.waits, self.clicked]),
        ]

    def choose(self) -> None:
        """A preset was chosen: set the knobs, unlock the prediction, go to the first step."""
        setup = self.presets[self.preset.value]
        self.quiet = True
        if self.lesson == S10:
            self._set_knobs(setup)
        question = setup.question
        if question:
            self.question.value = f"<b>Predict first.</b> {escape(question.words)}"
            _set(self.prediction, 0, 0, question.top)
        self.lock.value = False
        self.quiet = False
        self.run(first=True)

    def _set_knobs(self, setup: Setup) -> None:
        config = setup.config
        budget, blocks, seats = config.max_num_batched_tokens, config.num_blocks, config.max_num_seqs
        longest = max(prompt + output for _, prompt, output, *_ in setup.load)
        _set(
            self.knobs["max_num_batched_tokens"],
            budget,
            max(1, budget // 8),
            max(2 * budget, longest),
            max(1, budget // 64),
        )
        _set(self.knobs["num_blocks"], blocks, max(1, blocks // 8), 2 * blocks, max(1, blocks // 60))
        _set(self.knobs["max_num_seqs"], seats, 1, 2 * seats)
        self.knobs["policy"].value = config.policy

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
        except CourseError as error:
            self.picture.value = f"<div class='kit-error' style='padding:1em;color:#b00'>{escape(str(error))}</div>"
            return
        steps = max(len(self.frames), len(self.others))
        self.quiet = True
        for control in (self.play, self.step):
            _set(control, 1 if first else min(self.step.value, steps), 1, steps)
        self.play.step = max(1, steps // 150)
        self.quiet = False
        self.draw()

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
        self.quiet = True
        self.waits.options = ["the head", *ids]
        self.waits.value = selected or "the head"
        self.quiet = False
        self.picture.value = svg(frame, selected, self.pinned, versus, CLICK, self.key)
        self._judge()

    def _picked(self, request_id: str) -> None:
        if request_id in self.waits.options:
            self.waits.value = request_id

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
            self.verdict.value = f"<b>{right}{answer:,} {escape(question.unit)}.</b>"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """In place of ipywidgets' dump of every knob: the frame in a sentence, for a page on which widgets don't run."""
        return {**(super()._repr_mimebundle_(**options) or {}), "text/plain": describe(self.frame)}

    def _pin(self) -> None:
        self.pinned = self.frames[0].run if self.pin.value and self.frames else None
        self.pin.description = "unpin" if self.pinned else "pin this run"
        self.draw()


def _set(control: Any, value: int, low: int, high: int, step: int = 1) -> None:
    """Value and limits of a slider at once; one at a time they could contradict each other on the way."""
    with control.hold_trait_notifications():
        control.max, control.min, control.value, control.step = high, low, value, step

"""The knobs of s14's simulator: ipywidgets around kit.trace_simulator. Nothing is decided here."""

from __future__ import annotations

from itertools import count
from typing import Any

import ipywidgets as w

from kit.trace_simulator import Frame, describe, frames, presets, svg
from kit.widgets import CLICK, NARROW, STYLE, WIDE, _slider, complaint

EVERYBODY = "everybody"
_keys = count()


class TraceSimulator(w.VBox):
    """Steps through a workload, with what the scheduler says of each step; its limits can be changed."""

    def __init__(self, preset: str | None = None):
        self.key, self.presets = f"t{next(_keys)}", presets()
        self.frames: list[Frame] = []
        self.quiet = False
        names = list(self.presets)
        self.preset = w.Dropdown(options=names, value=preset or names[0], description="workload", layout=WIDE, style=STYLE)
        self.who = w.Dropdown(options=[EVERYBODY], description="explain", layout=NARROW, style=STYLE)
        self.clicked = w.Text(layout=w.Layout(display="none"))
        self.clicked.add_class("kit-click")
        self.knobs: dict[str, Any] = {}
        self.knob_rows, self.player, self.picture = w.VBox(), w.HBox(), w.HTML()
        self.play: Any = None  # these two are made anew for a run of another length
        self.step: Any = None
        super().__init__([w.HBox([self.preset, self.who, self.clicked]), self.knob_rows, self.player, self.picture])
        self.add_class("kit-simulator")
        self.preset.observe(lambda _: self.choose(), "value")
        self.who.observe(lambda _: self.draw(), "value")
        self.clicked.observe(lambda change: self._picked(change["new"]), "value")
        self.choose()

    def choose(self) -> None:
        """A workload was chosen: its own limits, the first step."""
        workload, old = self.presets[self.preset.value], list(self.knobs.values())
        config = workload["config"]
        budget = config["max_num_batched_tokens"]
        self.pool = next(key for key in ("num_gpu_blocks", "num_blocks") if key in config)
        self.cache = "enable_prefix_caching" if self.pool == "num_gpu_blocks" else "prefix_caching"
        blocks, cut = config[self.pool], config.get("long_prefill_token_threshold", 0)
        self.knobs = {
            "max_num_batched_tokens": _slider("budget", budget, config["max_num_seqs"], 4 * budget),
            self.pool: _slider("KV blocks", blocks, max(blocks // 2, 2), 2 * blocks),
            "long_prefill_token_threshold": _slider("threshold", cut, 0, max(2 * cut, 16)),
            self.cache: w.Checkbox(config.get(self.cache, False), description="prefix cache", indent=False),
        }
        for knob in self.knobs.values():
            knob.observe(lambda _: self.run(), "value")
        rows = list(self.knobs.values())
        self.knob_rows.children = [w.HBox(rows[:2]), w.HBox(rows[2:])]
        for knob in old:
            knob.close()
        self.quiet = True
        self.who.options = [EVERYBODY, *(entry["id"] for entry in workload["requests"])]
        self.who.value = EVERYBODY
        self.quiet = False
        self.run(first=True)

    def run(self, first: bool = False) -> None:
        """Replay the workload under the knobs' limits, and show the step that the slider is at."""
        try:
            options = {name: knob.value for name, knob in self.knobs.items()}
            self.frames = frames(self.presets[self.preset.value], title=self.preset.value, **options)
        except Exception as error:  # a scheduler that is being written may raise anything
            self._complain(error)
            return
        steps = max(len(self.frames), 1)
        if self.step is None or first or steps != self.step.max:
            self._new_player(1 if first or self.step is None else min(self.step.value, steps), steps)
        self.draw()

    def _new_player(self, value: int, steps: int) -> None:
        old = [control for control in (self.play, self.step) if control]
        self.play = w.Play(value, min=1, max=steps, interval=600, show_repeat=False)
        self.step = _slider("step", value, 1, steps)
        self.step.layout = w.Layout(width="600px")
        w.jslink((self.play, "value"), (self.step, "value"))
        self.step.observe(lambda _: self.draw(), "value")
        self.player.children = [self.play, self.step]
        for control in old:
            control.close()

    def draw(self) -> None:
        """Show the current step."""
        if self.quiet:
            return
        if not self.frames:
            words = "Nobody could be served: every request is refused."
            self.picture.value = f"<div class='kit-error' style='padding:1em'>{words}</div>"
            return
        selected = None if self.who.value == EVERYBODY else self.who.value
        self.picture.value = svg(self.frames[min(self.step.value, len(self.frames)) - 1], selected, CLICK, self.key)

    def _complain(self, error: Exception) -> None:
        self.frames = []
        self.picture.value = complaint(error)

    def _picked(self, request_id: str) -> None:
        """A click on a request narrows the explanation to it; a second one widens it again."""
        if request_id in self.who.options:
            self.who.value = EVERYBODY if self.who.value == request_id else request_id
        self.clicked.value = ""  # so that a second click on the same request is news

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """In place of ipywidgets' dump of every knob: the frame in a sentence, for a page on which widgets don't run."""
        text = describe(self.frames[self.step.value - 1]) if self.frames else "The simulator could not run."
        return {**(super()._repr_mimebundle_(**options) or {}), "text/plain": text}

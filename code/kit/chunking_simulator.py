"""s11's simulator: each step's batch against the budget, and under it the work that those in mid-answer waited for.

`frames` runs the lesson's scheduler, yours where written; `svg` draws one frame. Both need nothing but the standard
library; `show` adds knobs where ipywidgets is there.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, fields
from functools import lru_cache
from html import escape
from typing import Any

from kit.config import Config
from kit.drawing import BLAME, CARD, DECODE, EMPTY, FONT, INK, LINE, PREFILL, SOFT, WARM, Pen
from kit.errors import CourseError, RequestRefused
from kit.request import Request
from kit.runner import FakeRunner

LESSON = "s11_chunked_prefill"
MOST_STEPS = 400
WIDTH, LEFT, RIGHT = 900, 64, 884
STRIP, PLOT, ROW = 150, 110, 20  # heights in pixels
WAYS: dict[str, dict[str, Any]] = {  # steps -> what they say in a config
    "mixed chunks": {},
    "chunks, prompts first": {"prefill_first": True},
    "whole prompts": {"chunked_prefill": False},
}


@dataclass(frozen=True)
class Knobs:
    """One run: `decoders` requests in mid-answer; behind the fourth step a long prompt L arrives, and S (10 tokens) with it."""

    way: str = "mixed chunks"
    budget: int = 32
    prompt: int = 160
    threshold: int = 0
    decoders: int = 4


PRESETS = {
    "mixed chunks": Knobs(),
    "chunks, prompts first": Knobs("chunks, prompts first"),
    "whole prompts": Knobs("whole prompts", budget=192),
    "threshold 20": Knobs(threshold=20),
}


@dataclass(frozen=True)
class Bar:
    """A request as it was in one step: tokens stored, known, and all that it can become; what this step adds; its state."""

    id: str
    prompt: int
    stored: int
    known: int
    total: int
    now: int
    kind: str
    state: str


@dataclass(frozen=True)
class Column:
    """What one step computed: (id, tokens, `decode` or `prefill`); and the longest wait of those in mid-answer.

    gap: tokens computed since the last token of whoever waits longest. paid: whether that request got its next one here.
    """

    parts: tuple[tuple[str, int, str], ...]
    gap: int
    paid: bool

    @property
    def tokens(self) -> int:
        return sum(n for _, n, _ in self.parts)


@dataclass(frozen=True)
class Frame:
    """One step of a run. columns: those of the whole run; `number` (from 1) says which of them is now."""

    knobs: Knobs
    number: int
    columns: tuple[Column, ...] = field(repr=False)
    bars: tuple[Bar, ...] = field(repr=False)
    longest: int  # the largest gap so far, those still open among them
    first_token: dict[str, int]
    note: str


def frames(knobs: Knobs) -> list[Frame]:
    """Every step of a run. CourseError for knobs that no scheduler can work with."""
    lesson = importlib.import_module(LESSON)
    limits: dict[str, Any] = {"max_num_batched_tokens": knobs.budget, "max_num_seqs": min(16, knobs.budget)}
    limits |= {"num_blocks": 1000, "watermark": 0.0, "long_prefill_token_threshold": knobs.threshold}
    scheduler = lesson.ChunkedScheduler(Config(**limits, **WAYS[knobs.way]))
    names = [chr(ord("A") + i) for i in range(knobs.decoders)]
    load = [Request(name, range(4), 14) for name in names]
    load += [Request("L", range(knobs.prompt), 3, arrival_ns=4), Request("S", range(10), 3, arrival_ns=4)]
    engine = importlib.import_module("s08_static_batching").Engine(scheduler, FakeRunner(), load)

    log: list[tuple[int, list[str]]] = []
    columns: list[Column] = []
    moments: list[tuple[tuple[Bar, ...], int, dict[str, int], str]] = []
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    done = 0
    for _ in range(MOST_STEPS):
        if not (engine.arrivals or scheduler.waiting or scheduler.running):
            break
        engine.arrive()
        start_ns = engine.clock_ns
        behind = {r: (r.num_computed_tokens, r.num_tokens) for r in load}
        batch = engine.step()
        kinds = {
            r: "decode" if behind[r][1] - behind[r][0] == 1 and behind[r][1] > len(r.prompt) else "prefill" for r in load
        }
        done += sum(batch.tokens.values())
        got = [r.id for r, n in batch.tokens.items() if behind[r][0] + n == behind[r][1]]
        waits = {name: done - since for name, since in last.items()}
        worst = max(waits, key=lambda name: waits[name], default="")
        columns.append(
            Column(tuple((r.id, n, kinds[r]) for r, n in batch.tokens.items()), waits.get(worst, 0), worst in got)
        )
        log.append((sum(batch.tokens.values()), got))
        for name in got:
            first.setdefault(name, len(columns))
            last[name] = done
        for r in load:
            if r.finish_reason:
                last.pop(r.id, None)
        bars = tuple(_bar(r, batch.tokens.get(r, 0), kinds[r], *behind[r], start_ns) for r in load)
        refused = [
            f"{r.id} was refused, {error.reason}: {error.needed} > {error.available}."
            for r, error in engine.report.refused
            if isinstance(error, RequestRefused)
        ]
        head = next(iter(scheduler.waiting), None)
        note = f"{head.id} waits: {batch.head}" if head is not None and batch.head else "the queue is empty"
        longest = max([*lesson.longest_gap(log).values(), *(column.gap for column in columns)], default=0)
        moments.append((bars, longest, dict(first), " ".join(refused) or note))
        if not batch.tokens and not scheduler.running and not engine.arrivals:
            break  # nothing can change any more: one idle step says it all
    return [Frame(knobs, i, tuple(columns), *moment) for i, moment in enumerate(moments, 1)]


def _bar(request: Request, now: int, kind: str, computed: int, known: int, start_ns: int) -> Bar:
    """computed: tokens stored before the step: at its end a request that is done has none any more."""
    here = "runs" if computed + now else "waits" if request.arrival_ns <= start_ns else "not here yet"
    total = len(request.prompt) + request.max_tokens
    state = "done" if request.finish_reason in ("length", "stop") else request.finish_reason or here
    return Bar(request.id, len(request.prompt), computed + now, known, total, now, kind, state)


def svg(frame: Frame, key: str = "") -> str:
    """One frame as an SVG of 900 pixels' width. key: keeps two pictures on one page apart."""
    pen, knobs, now = Pen(f"chunks{key}"), frame.knobs, frame.columns[frame.number - 1]
    count = len(frame.columns)
    step = min((RIGHT - LEFT) / max(count, 1), 40.0)
    threshold = f", threshold {knobs.threshold}" if knobs.threshold else ""
    title = f"{knobs.way}: budget {knobs.budget}{threshold}, L has a prompt of {knobs.prompt}"
    pen.text(16, 26, title, 16, INK, "font-weight='700'")
    pen.text(RIGHT, 26, f"step {frame.number} of {count}", 14, INK, "text-anchor='end' font-weight='600'")
    words = f"{now.tokens} of {knobs.budget} tokens in this step; longest gap so far {frame.longest}; {frame.note}"
    pen.text(16, 46, words, 12, BLAME if "refused" in frame.note else SOFT)

    top = 64.0
    pen.text(16, top + 12, "Each step's batch against the budget", 12.5, INK, "font-weight='600'")
    x = RIGHT - 236.0
    for fill, text in ((DECODE, "decode"), (PREFILL, "prefill"), (LINE, "to come")):
        pen.rect(x, top + 2, 12, 12, fill, "rx='2'")
        pen.text(x + 17, top + 12, text, 11.5, SOFT)
        x += 82
    base = top + 26 + STRIP
    scale = STRIP / max(knobs.budget, max((column.tokens for column in frame.columns), default=0))
    _limit(pen, base - knobs.budget * scale, f"{knobs.budget}")
    for i, column in enumerate(frame.columns):
        x, y = LEFT + i * step, base
        past = i < frame.number
        for name, n, kind in column.parts:
            y -= n * scale
            fill = (DECODE if kind == "decode" else PREFILL) if past else EMPTY
            pen.rect(x + 1, y, step - 2, n * scale, fill, f"stroke='{CARD}'", f"step {i + 1}: {name} {n}, {kind}")
            if past and n * scale >= 13 and step >= 18:
                pen.text(x + step / 2, y + n * scale / 2 + 4, f"{name}{n}" if step >= 30 else name, 10.5, CARD,
                         "text-anchor='middle'")  # fmt: skip
    pen.line(LEFT, base, RIGHT, base, SOFT)
    _ticks(pen, count, step, base + 13)

    top = base + 28
    pen.text(16, top + 12, "Tokens computed since the last token of whoever in mid-answer has waited longest", 12.5, INK,
             "font-weight='600'")  # fmt: skip
    base = top + 26 + PLOT
    scale = PLOT / max(knobs.budget, max((column.gap for column in frame.columns), default=0), 1)
    _limit(pen, base - knobs.budget * scale, "budget")
    for i, column in enumerate(frame.columns[: frame.number]):
        fill, what = (INK, "its next token is there") if column.paid else (BLAME, "it still waits")
        pen.rect(LEFT + i * step + step * 0.25, base - column.gap * scale, step * 0.5, column.gap * scale, fill, "rx='1'",
                 f"step {i + 1}: {column.gap} tokens, {what}")  # fmt: skip
    pen.line(LEFT, base, RIGHT, base, SOFT)
    if step * count:
        x = LEFT + (frame.number - 1) * step
        pen.rect(x, 90, step, base - 90, "none", f"stroke='{SOFT}' stroke-dasharray='3 3'")

    top = base + 22
    for i, bar in enumerate(frame.bars):
        _request_row(pen, bar, frame.first_token.get(bar.id), top + i * ROW)
    height = top + len(frame.bars) * ROW + 12
    label = escape(describe(frame), quote=True)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' height='{height:.0f}' "
        f"role='img' style='max-width:100%;height:auto' aria-label='{label}' {FONT}><title>{label}</title>"
        f"<rect x='0.5' y='0.5' width='{WIDTH - 1}' height='{height - 1:.0f}' rx='10' fill='{CARD}' stroke='{LINE}'/>"
        f"{''.join(pen.parts)}</svg>"
    )


def describe(frame: Frame) -> str:
    """The picture in a sentence, for a screen reader."""
    now = frame.columns[frame.number - 1]
    parts = " ".join(f"{name}{n}" for name, n, _ in now.parts) or "nothing"
    return f"{frame.knobs.way}, step {frame.number} of {len(frame.columns)}: {parts}; longest gap so far {frame.longest} tokens"


def _limit(pen: Pen, y: float, text: str) -> None:
    pen.line(LEFT, y, RIGHT, y, BLAME, "stroke-width='1.5' stroke-dasharray='6 4'")
    pen.text(LEFT - 6, y + 4, text, 11, BLAME, "text-anchor='end'")


def _ticks(pen: Pen, count: int, step: float, y: float) -> None:
    every = 1 if step >= 18 else 5 if step >= 6 else 20
    for i in range(0, count, every):
        pen.text(LEFT + (i + 0.5) * step, y, str(i + 1), 10, SOFT, "text-anchor='middle'")


def _request_row(pen: Pen, bar: Bar, first_token: int | None, y: float) -> None:
    """How far behind a request is: stored, this step's tokens, what is to come; a mark where its prompt ends."""
    width = 560.0
    scale = width / bar.total
    pen.rect(16, y, 868, ROW - 2, WARM if bar.state == "waits" else CARD, "rx='3'")
    pen.text(24, y + 13, bar.id, 12, INK, "font-weight='600'")
    pen.rect(LEFT, y + 4, width, 10, EMPTY, "rx='2'", f"{bar.id}: {bar.stored} of {bar.known} known tokens stored")
    pen.rect(LEFT, y + 4, (bar.stored - bar.now) * scale, 10, LINE)
    pen.rect(LEFT + (bar.stored - bar.now) * scale, y + 4, bar.now * scale, 10, DECODE if bar.kind == "decode" else PREFILL)
    pen.line(LEFT + bar.prompt * scale, y + 2, LEFT + bar.prompt * scale, y + 16, INK)
    token = f", first token in step {first_token}" if first_token else ""
    pen.text(RIGHT - 6, y + 13, f"{bar.stored}/{bar.total} stored, {bar.state}{token}", 11, SOFT, "text-anchor='end'")


def show(preset: str = "mixed chunks") -> Any:
    """The simulator with its knobs; without ipywidgets, a still picture."""
    try:
        import ipywidgets as w
    except ImportError:
        from IPython.display import SVG

        print("The knobs need ipywidgets (python3 course.py lab installs it); here is a still picture.")
        return SVG(svg(frames(PRESETS[preset])[-1]))
    return _widget(w, preset)


def _widget(w: Any, preset: str) -> Any:
    narrow, style = w.Layout(width="300px"), {"description_width": "86px"}

    def slider(name: str, low: int, high: int) -> Any:
        return w.IntSlider(low, low, high, description=name, layout=narrow, style=style)

    names = w.Dropdown(options=list(PRESETS), value=preset, description="preset", layout=narrow, style=style)
    knobs = {
        "way": w.Dropdown(options=list(WAYS), description="steps", layout=narrow, style=style),
        "budget": slider("budget", 8, 256),
        "prompt": slider("L's prompt", 8, 240),
        "threshold": slider("threshold", 0, 128),
        "decoders": slider("decoders", 1, 8),
    }
    player, picture, quiet = w.HBox(), w.HTML(), [False]
    run = lru_cache(lambda knobs, scheduler: frames(knobs))  # by scheduler: an edited one is run anew

    def draw(*_: Any) -> None:
        if quiet[0]:
            return
        try:
            lesson = importlib.import_module(LESSON)
            shown = run(Knobs(**{name: knob.value for name, knob in knobs.items()}), lesson.ChunkedScheduler)
            if not player.children or player.children[1].max != len(shown):
                new_player(len(shown))
            picture.value = svg(shown[player.children[1].value - 1])
        except Exception as error:  # a scheduler that is being written may raise anything
            words = str(error) if isinstance(error, CourseError) else f"{type(error).__name__}: {error}"
            picture.value = f"<div class='kit-error' style='padding:1em;color:{BLAME}'>{escape(words)}</div>"

    def new_player(count: int) -> None:
        """A slider is replaced, never given other limits: in the page it would send back a value of the old ones."""
        value = min(player.children[1].value, count) if player.children else 1
        old = player.children
        play = w.Play(value, min=1, max=count, interval=250, show_repeat=False)
        step = w.IntSlider(value, 1, count, description="step", layout=w.Layout(width="600px"), style=style)
        w.jslink((play, "value"), (step, "value"))
        step.observe(draw, "value")
        player.children = (play, step)
        for control in old:
            control.close()

    def choose(*_: Any) -> None:
        quiet[0] = True
        for knob in fields(Knobs):
            knobs[knob.name].value = getattr(PRESETS[names.value], knob.name)
        quiet[0] = False
        draw()

    names.observe(choose, "value")
    for knob in knobs.values():
        knob.observe(draw, "value")
    choose()
    rows = list(knobs.values())

    class Chunks(w.VBox):
        def __repr__(self) -> str:  # what a viewer without widgets shows
            return describe(frames(PRESETS[preset])[0])

    box = Chunks([w.HBox([names, rows[0]]), w.HBox(rows[1:3]), w.HBox(rows[3:]), player, picture])
    box.add_class("kit-simulator")
    return box

"""s13's simulator: who sits in which seat, and where everybody stands in the queue, step by step, coloured by class.

`frames` runs the lesson's scheduler, yours where written; `svg` draws one frame and all before it. Both need nothing but the
standard library; `show` adds knobs where ipywidgets is there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from typing import Any

from kit import fairness
from kit.config import Config
from kit.drawing import BLAME, CARD, DECODE, EMPTY, FONT, INK, LINE, PREFILL, RECOMPUTE, SOFT, Pen
from kit.errors import CourseError
from kit.report import percentile
from kit.request import Count, Request

LESSON = "s13_fairness"
COLOURS = (BLAME, DECODE, PREFILL, RECOMPUTE)
MOST_STEPS = 1500
ORDERS = ("fcfs", "shortest", "priority", "fair share")

Load = tuple[tuple[str, int, int, int, float, str], ...]  # (id, prompt tokens, max_tokens, arrival in ns, priority, class)


@dataclass(frozen=True)
class Setup:
    """A load and what the operator chose. order: one of ORDERS. The last word of a load's entry is its class, or tenant."""

    title: str
    load: Load
    config: Config
    order: str = "fcfs"


@dataclass(frozen=True)
class Frame:
    """One step, decided. seats: request id for each seat, "" for a free one. queue: ids, the head first.

    ttft_ms: class -> those who have their first token when the step has ended, in the order in which they got it.
    served: tenant -> counter, under a fair share. head: why the head waits.
    """

    number: int
    end_ns: int
    seats: tuple[str, ...]
    queue: tuple[str, ...]
    put_out: tuple[str, ...]
    head: str
    ttft_ms: Mapping[str, tuple[float, ...]]
    served: Mapping[str, int]


def plain(requests: Iterable[Request], classes: Mapping[float, str] | None = None) -> Load:
    """Requests as plain data, classed by priority, or by tenant."""
    return tuple(
        (r.id, len(r.prompt), r.max_tokens, r.arrival_ns, r.priority, classes[r.priority] if classes else r.tenant)
        for r in requests
    )


def frames(setup: Setup) -> list[Frame]:
    """Every step of a run, in order."""
    lesson = importlib.import_module(LESSON)
    group = {id: name for id, *_, name in setup.load}
    requests = [Request(i, range(p), m, t, q, output=Count(), tenant=c) for i, p, m, t, q, c in setup.load]
    share = lesson.FairShare() if setup.order == "fair share" else None
    scheduler = lesson.FairScheduler(setup.config, share)
    engine = lesson.Engine(scheduler, None, requests)
    seats = [""] * setup.config.max_num_seqs
    ttft: dict[str, tuple[float, ...]] = {name: () for name in dict.fromkeys(group.values())}
    seen: set[str] = set()
    found: list[Frame] = []
    decide = scheduler.schedule
    decided: list[tuple[list[str], tuple[str, ...], str]] = []

    def schedule() -> Any:
        batch = decide()
        queue = tuple(request.id for request in scheduler.waiting)
        decided.append(([request.id for request in scheduler.running], queue, str(batch.head or "")))
        return batch

    scheduler.schedule = schedule
    while (engine.arrivals or scheduler.waiting or scheduler.running) and len(found) < MOST_STEPS:
        batch = engine.step()
        running, queue, head = decided.pop()
        if not running and not queue:
            continue  # the clock jumped to the next arrival
        seats = [name if name in running else "" for name in seats]
        for name in running:
            if name not in seats:
                seats[seats.index("")] = name
        for request in batch.tokens:
            if request.num_output_tokens and request.id not in seen:
                seen.add(request.id)
                name = group[request.id]
                ttft[name] = (*ttft[name], (engine.clock_ns - request.arrival_ns) / 1e6)
        put_out = tuple(request.id for request in batch.preempted)
        served = dict(share.served) if share else {}
        found.append(Frame(len(found) + 1, engine.clock_ns, tuple(seats), queue, put_out, head, dict(ttft), served))
    return found


@lru_cache
def presets() -> dict[str, Setup]:
    """The lesson's experiments, small enough to see each request."""
    two: dict[float, str] = {0: "urgent", 1: "jobs"}
    seat = tuple(
        (name, 4, tokens, at, priority, two[priority])
        for name, tokens, at, priority in (("A", 20, 0, 1), ("B", 20, 0, 1), ("H", 4, 50_000_000, 0))
    )
    one = (("old", 16, 2, 0, 10, "old"), *((f"u{i}", 16, 2, i * 20_000_000, 0, "urgent") for i in range(60)))
    machine = Config(max_num_batched_tokens=512, max_num_seqs=6, num_blocks=2000)
    classes = plain(fairness.two_classes(urgent=30, rate=8.0, jobs=12), two)
    tenants = plain(fairness.flood(big=24, steady=10, light=6))
    large = plain(fairness.small_and_large(3))
    large = tuple((i, p, m, t if i != "large" else 300_000_000, q, "large" if i == "large" else "small")
                  for i, p, m, t, q, _ in large)  # fmt: skip
    urgent = replace(machine, policy="priority", preempt_for_priority=True)
    return {
        "a seat": Setup("Two seats: A and B run, H is urgent", seat, replace(urgent, max_num_seqs=2), "priority"),
        "two classes": Setup("Twelve jobs, and thirty urgent requests at 8/s", classes, urgent, "priority"),
        "one old among urgent ones": Setup("One seat, a stream of urgent requests, one of priority 10", one,
                                           replace(machine, max_num_seqs=1, policy="priority"), "priority"),
        "a flood": Setup("Three tenants, one floods", tenants, machine, "fair share"),
        "a blocked head": Setup("Small requests, and one that needs most of the pool", large,
                                replace(machine, num_blocks=100, max_num_seqs=10, watermark=0.0, admission="full_prompt",
                                        max_num_batched_tokens=2048)),
    }  # fmt: skip


def svg(run: list[Frame], number: int, title: str, classes: Mapping[str, str]) -> str:
    """Steps 1 to `number` of a run as an SVG of 900 pixels' width. classes: request id -> class."""
    pen, frame = Pen("fair"), run[number - 1]
    names = list(frame.ttft_ms)
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    pen.text(16, 28, title, 17, INK, "font-weight='700'")
    clock = f"step {number:,} of {len(run):,} · {frame.end_ns / 1e9:.2f} s"
    pen.text(884, 28, clock, 13, INK, "text-anchor='end' font-weight='600'")
    y = _classes(pen, frame, names, colour, classes, 52.0)
    left, width = 96.0, 788.0
    lane = max(8.0, min(18.0, 130 / len(frame.seats)))
    pen.text(16, y + 14, "seats", 13, INK, "font-weight='600'")
    _seats(pen, run[:number], len(run), colour, classes, (left, y, width, lane))
    y += lane * len(frame.seats) + 16
    deep = max((len(one.queue) for one in run), default=0)
    height = min(230.0, max(60.0, 14.0 * deep))
    pen.text(16, y + 14, "queue", 13, INK, "font-weight='600'")
    pen.text(16, y + 30, f"{len(frame.queue)} wait", 11, SOFT)
    pen.rect(left, y, width, height, EMPTY)
    _queue(pen, run[:number], len(run), colour, classes, (left, y, width, height / max(deep, 1)))
    x = left + width * number / len(run)
    pen.line(x, 52 + 22 * len(names), x, y + height, BLAME, "stroke-width='1.2'")
    y += height + 20
    words = f"{frame.queue[0]} at the head: {frame.head}" if frame.queue and frame.head else "nobody waits"
    if frame.put_out:
        words = f"{', '.join(frame.put_out)} was put out. {words}"
    pen.text(16, y, words, 12.5, INK, "class='why'")
    if frame.served:
        counters = ", ".join(f"{name} {frame.served.get(name, 0):,}" for name in names)
        pen.text(884, y, f"counters: {counters}", 12, SOFT, "text-anchor='end'")
    label = escape(f"{title}. Step {number}: {words}", quote=True)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 900 {y + 16:.0f}' width='900' {FONT} role='img' "
        f"aria-label='{label}' style='max-width:100%;height:auto'><rect width='900' height='{y + 16:.0f}' rx='8' "
        f"fill='{CARD}' stroke='{LINE}'/>{''.join(pen.parts)}</svg>"
    )


Box = tuple[float, float, float, float]


def _classes(
    pen: Pen, frame: Frame, names: list[str], colour: Mapping[str, str], classes: Mapping[str, str], y: float
) -> float:
    """A line a class: who waits, and the first tokens so far."""
    for name in names:
        times = frame.ttft_ms[name]
        waiting = sum(classes[id] == name for id in frame.queue)
        pen.rect(16, y - 10, 12, 12, colour[name], "rx='3'")
        pen.text(34, y, name, 12.5, INK, "font-weight='600'")
        first = " · ".join(f"{word} {percentile(times, p):,.0f}" for word, p in (("p50", 50), ("p99", 99), ("max", 100)))
        words = f"{waiting} wait, {len(times)} have begun" + (f", TTFT so far in ms (modelled): {first}" if times else "")
        pen.text(110, y, words, 12, SOFT)
        y += 22
    return y


def _seats(pen: Pen, run: list[Frame], steps: int, colour: Mapping[str, str], classes: Mapping[str, str], box: Box) -> None:
    """A lane a seat; where somebody was put out, a mark."""
    left, top, width, lane = box
    step, marks = width / steps, []
    for seat in range(len(run[0].seats)):
        pen.rect(left, top + seat * lane, width, lane - 1.5, EMPTY)
        start = 0
        for i in range(1, len(run) + 1):
            who = run[start].seats[seat]
            if i < len(run) and run[i].seats[seat] == who:
                continue
            if who:
                x, w = left + start * step, (i - start) * step
                title = f"{who}: steps {start + 1} to {i}"
                pen.rect(x, top + seat * lane, max(w - 0.5, 0.8), lane - 1.5, colour[classes[who]], "rx='2'", title)
                if w > 8 * len(who) + 4 and lane >= 12:
                    pen.text(x + 4, top + seat * lane + lane - 5, who, 10, CARD)
                if i < len(run) and who in run[i].put_out:
                    marks.append((x + w - 4, top + (seat + 0.5) * lane + 4))
            start = i
    for x, y in marks:
        pen.text(x, y, "×", 13, INK, "font-weight='700'")


def _queue(pen: Pen, run: list[Frame], steps: int, colour: Mapping[str, str], classes: Mapping[str, str], box: Box) -> None:
    """Where each request stands, the head on top; those of a class in one colour."""
    left, top, width, row = box
    step = width / steps
    at: dict[str, tuple[int, int, int]] = {}  # request -> its place, since which step, until which
    strokes: dict[str, list[str]] = {}  # class -> where its requests stood
    moves: dict[str, list[str]] = {}  # class -> from one place to the next

    def draw(name: str, place: int, since: int, until: int) -> None:
        y = top + (place + 0.5) * row
        path = f"M{left + since * step:.1f},{y:.1f} H{left + (until + 1) * step:.1f}"
        strokes.setdefault(classes[name], []).append(path)

    for i, frame in enumerate(run):
        for place, name in enumerate(frame.queue):
            before, since, until = at.get(name, (place, i, i))
            if until < i - 1 or before != place:
                draw(name, before, since, until)
                if until == i - 1:
                    x, y, z = left + i * step, top + (before + 0.5) * row, top + (place + 0.5) * row
                    moves.setdefault(classes[name], []).append(f"M{x:.1f},{y:.1f} V{z:.1f}")
                since = i
            at[name] = place, since, i
    for name, (place, since, until) in at.items():
        draw(name, place, since, until)
    thick = min(3.0, max(1.0, row / 3))
    for paths, look in ((moves, "stroke-opacity='0.18'"), (strokes, f"stroke-width='{thick:.1f}'")):
        for group, pieces in paths.items():
            stroke = f"class='places' fill='none' stroke='{colour[group]}' {look}"
            pen.parts.append(f"<path d='{' '.join(pieces)}' {stroke}><title>{escape(group)}</title></path>")


def picture(preset: str, number: int | None = None, **change: Any) -> str:
    """The picture of a preset at a step, the last one unset; `change` goes to its Config, `order` to its Setup."""
    setup = presets()[preset]
    order = change.pop("order", setup.order)
    run = frames(replace(setup, config=replace(setup.config, **change), order=order))
    return svg(run, number or len(run), setup.title, {id: name for id, *_, name in setup.load})


def show(preset: str = "two classes") -> Any:
    """The simulator with its knobs; without ipywidgets, a still picture."""
    try:
        import ipywidgets as w
    except ImportError:
        from IPython.display import SVG

        print("The knobs need ipywidgets (python3 course.py lab installs it); here is a still picture.")
        return SVG(picture(preset))
    choice = w.Dropdown(options=list(presets()), value=preset, description="preset")
    order = w.Dropdown(options=ORDERS, description="order")
    seats = w.Checkbox(description="urgent ones take seats")
    aging = w.FloatSlider(0, min=0, max=20, step=0.5, description="points/s")
    skip = w.Checkbox(description="skip a blocked head")
    admission = w.Dropdown(options=("chunk", "full_prompt", "to_completion"), description="admission")
    step = w.IntSlider(1, min=1, max=2, description="step", layout=w.Layout(width="600px"))
    play = w.Play(1, min=1, max=2, interval=120, show_repeat=False)
    w.jslink((play, "value"), (step, "value"))
    screen = w.HTML()
    knobs = (order, seats, aging, skip, admission)
    state: dict[str, Any] = {"run": [], "quiet": False}

    def run(*_: Any) -> None:
        if state["quiet"]:
            return
        setup = presets()[choice.value]
        urgent = order.value == "priority"
        try:
            config = replace(
                setup.config,
                policy=order.value if order.value in ORDERS[:3] else "fcfs",
                preempt_for_priority=seats.value and urgent,
                aging_per_step=aging.value / 1e9 if urgent else 0,
                skip_blocked=skip.value,
                admission=admission.value,
            )
            state["run"] = frames(replace(setup, config=config, order=order.value))
        except CourseError as error:
            state["run"], screen.value = [], f"<p>{escape(str(error))}</p>"
            return
        state["quiet"] = True
        play.max = step.max = len(state["run"])
        play.step = max(1, step.max // 150)
        step.value = min(step.value, step.max)
        state["quiet"] = False
        draw()

    def draw(*_: Any) -> None:
        if state["run"] and not state["quiet"]:
            setup = presets()[choice.value]
            screen.value = svg(state["run"], step.value, setup.title, {id: name for id, *_, name in setup.load})

    def choose(*_: Any) -> None:
        setup = presets()[choice.value]
        state["quiet"] = True
        order.value, seats.value, skip.value = setup.order, setup.config.preempt_for_priority, setup.config.skip_blocked
        aging.value, admission.value, step.value = setup.config.aging_per_step * 1e9, setup.config.admission, 1
        state["quiet"] = False
        run()
        step.value = step.max

    choice.observe(choose, "value")
    for knob in knobs:
        knob.observe(run, "value")
    step.observe(draw, "value")
    choose()

    class Seats(w.VBox):
        def __repr__(self) -> str:  # what a viewer without widgets shows
            return f"{presets()[choice.value].title}: {len(state['run'])} steps"

    box = Seats([w.HBox([choice, order, admission]), w.HBox([seats, aging, skip]), w.HBox([play, step]), screen])
    box.add_class("kit-simulator")
    return box

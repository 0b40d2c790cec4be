"""The pictures of s12: the two bills by length, and the simulator, one load by recompute and by swap with the bill of each.

The shape of the file: `bills_svg`; `Setup`, `frames` and `svg`, pure and standard library only; `player`, the knobs (ipywidgets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from types import ModuleType
from typing import Any

from kit.config import Config
from kit.drawing import BLAME, CARD, DECODE, EMPTY, FONT, INK, LINE, MARGIN, PREFILL, RECOMPUTE, SOFT, WIDTH, Pen
from kit.preemption import BESIDE, Bill, bills, cheaper, machines, name_of
from kit.request import Count, Request
from kit.roofline import BLUE, GREEN, ORANGE, RED, Axes, page

LENGTHS = tuple(2**i for i in range(4, 15))


def bills_svg(s12: ModuleType) -> str:
    """Four panels: milliseconds by tokens, for A100 and H100, with GQA and without."""
    parts: list[str] = []
    for i, machine in enumerate(machines()):
        axes = Axes(64 + i % 2 * 364, 54 + i // 2 * 264, 290, 176, (16, 16_384), (0.1, 2000), log=True)
        axes.ticks((16, 128, 1024, 8192), (0.1, 1, 10, 100, 1000), "tokens stored", "ms")
        axes.text(axes.left, axes.top - 24, name_of(machine), 13)
        where = cheaper(s12, machine, BESIDE, s12.PCIE4)
        axes.text(axes.left + 290, axes.top - 7, f"recompute beside {BESIDE} is cheaper: {where}", 11, SOFT, "end")
        dashed = "stroke-width='2' stroke-dasharray='6 4'"
        for colour, more, choose in (
            (BLUE, dashed, lambda n, m=machine: bills(s12, m, n, 0, s12.PCIE4)[0]),
            (BLUE, "stroke-width='2.5'", lambda n, m=machine: bills(s12, m, n, BESIDE, s12.PCIE4)[0]),
            (RED, "stroke-width='2.5'", lambda n, m=machine: bills(s12, m, n, 0, s12.PCIE4)[1]),
            (ORANGE, "stroke-width='2'", lambda n, m=machine: bills(s12, m, n, 0, s12.PCIE4_SHARED)[1]),
            (GREEN, "stroke-width='1.5' stroke-dasharray='2 3'", lambda n, m=machine: s12.quadratic_ms(m[1], m[2], n)),
        ):
            axes.line([(n, ms) for n in LENGTHS if (ms := choose(n)) >= 0.1], colour, more)
        parts += axes.parts
    keys = Axes(0, 0, 1, 1, (0, 1), (0, 1))
    names = (
        (BLUE, "5 3", "recompute, its own step"),
        (BLUE, "", f"recompute, beside {BESIDE}"),
        (RED, "", "swap, 25 GB/s"),
        (ORANGE, "", "swap, 12 GB/s"),
        (GREEN, "2 3", "attention"),
    )
    x = 30.0
    for colour, dash, name in names:
        keys.parts.append(
            f"<line x1='{x}' y1='564' x2='{x + 22}' y2='564' stroke='{colour}' stroke-width='2.5' stroke-dasharray='{dash}'/>"
        )
        keys.text(x + 27, 568, name, 11)
        x += 48 + 5.6 * len(name)
    keys.text(
        30,
        588,
        "Modelled from published profiles; attention: among the request's own tokens, at the chip's peak.",
        11,
        SOFT,
    )
    return page(600, "Recompute and swap by tokens stored, for four machines", [*parts, *keys.parts])


# The simulator.


@dataclass(frozen=True)
class Setup:
    """What the knobs say. machine: its place in `machines()`. long: prompt tokens of the victim. decodes: small ones beside it."""

    machine: int = 0
    blocks: int = 124
    long: int = 900
    small: int = 3
    cpu_blocks: int = 200
    gb_per_s: int = 25


@dataclass
class Lane:
    """One way of running the load. segments: (request id, kind, first ns, last ns); kinds as in KINDS of this file."""

    name: str
    segments: list[tuple[str, str, int, int]] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    bill_ms: list[float] = field(default_factory=list)  # by step, so far
    words: list[str] = field(default_factory=list)  # by step: what happened
    total_ns: int = 0
    evictions: int = 0


@dataclass(frozen=True)
class Frame:
    """The two runs up to a moment: the end of a step of the longer one."""

    index: int
    now_ns: int
    ways: tuple[Lane, ...]
    setup: Setup
    label: str
    is_last: bool


KINDS = {
    "prefill": (PREFILL, "prompt"),
    "decode": (DECODE, "a token"),
    "again": (RECOMPUTE, "computed again"),
    "waits": (EMPTY, "waits"),
    "copy": (BLAME, "copies: nobody gets a token"),
}


def _load(setup: Setup) -> list[Request]:
    """Small ones first, then the long one, which is the last admitted, and so the victim."""
    small = [Request(f"S{i + 1}", range(300), 90, output=Count()) for i in range(setup.small)]
    return [*small, Request("L", range(setup.long), 60, output=Count())]


def _way(s12: ModuleType, setup: Setup, name: str, cpu_blocks: int) -> Lane:
    config = Config(num_blocks=setup.blocks, max_num_seqs=16, cpu_blocks=cpu_blocks, watermark=0.0)
    bill = Bill(s12, machines()[setup.machine], s12.Link("link", setup.gb_per_s * 1e9, 10e-6))
    scheduler = s12.SwappingScheduler(config)
    requests = _load(setup)
    engine, way = s12.Engine(scheduler, bill, requests), Lane(name)
    for _ in range(2000):
        if not (engine.arrivals or scheduler.waiting or scheduler.running):
            break
        start, again, copied = engine.clock_ns, bill.again, bill.copy_ns
        stored = dict(bill.stored)
        batch = engine.step()
        copy_ns = bill.copy_ns - copied
        begins = start + copy_ns  # copies come before all else
        for request in requests:
            if copy_ns and request.finish_reason is None:
                way.segments.append((request.id, "copy", start, begins))
            if request in batch.tokens:
                again_too = batch.tokens[request] > 1 and stored.get(request, 0)
                kind = "decode" if batch.tokens[request] == 1 else "again" if again_too else "prefill"
                way.segments.append((request.id, kind, begins, engine.clock_ns))
            elif request.finish_reason is None:
                way.segments.append((request.id, "waits", begins, engine.clock_ns))
        way.evictions += len(batch.preempted)
        events = [f"{request.id} {'swapped out' if request in batch.swapped else 'evicted'}" for request in batch.preempted]
        events += [f"{request.id} back" for request in (*batch.resumed, *batch.swapped_in)]
        events += [f"{bill.again - again:,} tokens again"] if bill.again > again else []
        way.words.append(", ".join(events))
        way.ends_ns.append(engine.clock_ns)
        way.bill_ms.append((bill.again_ns + bill.copy_ns) / 1e6)
    way.total_ns = engine.clock_ns
    return way


def frames(s12: ModuleType, setup: Setup) -> list[Frame]:
    """Both runs, step by step of the longer one. CourseError for limits that no scheduler can work with."""
    ways = (_way(s12, setup, "recompute", 0), _way(s12, setup, "swap", setup.cpu_blocks))
    moments = max((way.ends_ns for way in ways), key=len)
    label = f"modelled: {name_of(machines()[setup.machine])}, {setup.gb_per_s} GB/s"
    last = len(moments) - 1
    latest = max(way.total_ns for way in ways)
    return [Frame(i, latest if i == last else now, ways, setup, label, i == last) for i, now in enumerate(moments)]


def svg(frame: Frame) -> str:
    """The two timelines up to the frame's moment, under one axis, with the bill of each so far."""
    pen, setup = Pen("preemption"), frame.setup
    span = max(way.total_ns for way in frame.ways)
    left, width = 64.0, WIDTH - 64 - MARGIN
    pen.text(MARGIN, 26, "One load, two ways back", 17, more="font-weight='700'")
    pen.text(MARGIN, 44, f"{setup.small} small requests (300 → 90), then L ({setup.long} → 60); {setup.blocks} GPU blocks, "
             f"{setup.cpu_blocks} on the CPU", 12, SOFT)  # fmt: skip
    pen.text(WIDTH - MARGIN, 44, frame.label, 11, SOFT, "text-anchor='end'")
    y = 62.0
    names = [request.id for request in _load(setup)]
    for way in frame.ways:
        at = max((i for i, end in enumerate(way.ends_ns) if end <= frame.now_ns), default=-1)
        bill = way.bill_ms[at] if at >= 0 else 0.0
        done = f", done after {way.total_ns / 1e6:,.0f} ms" if frame.now_ns >= way.total_ns else ""
        pen.text(MARGIN, y + 12, way.name, 14, more="font-weight='700'")
        pen.text(
            WIDTH - MARGIN,
            y + 12,
            f"the bill so far: {bill:,.1f} ms{done}",
            13,
            BLAME if bill else SOFT,
            "text-anchor='end'",
        )
        news = [(way.ends_ns[i], words) for i, words in enumerate(way.words) if words and i <= at]
        pen.text(left + 60, y + 12, "; ".join(words for _, words in news[-3:]), 12, SOFT)
        y += 20
        rows = {name: y + 19 * i for i, name in enumerate(names)}
        for name, top in rows.items():
            pen.text(MARGIN, top + 12, name, 12)
            pen.rect(left, top, width, 15, CARD, f"stroke='{LINE}' stroke-width='0.5'")
        for name, kind, first, until in _merged(way.segments):
            if first < frame.now_ns:
                until = min(until, frame.now_ns)
                x = left + width * first / span
                pen.rect(x, rows[name], max(width * (until - first) / span, 1.2 if kind == "copy" else 0), 15, KINDS[kind][0],
                         title=f"{name}: {KINDS[kind][1]}, {first / 1e6:,.0f} to {until / 1e6:,.0f} ms")  # fmt: skip
        y += 19 * len(names) + 14
    for i in range(6):
        ms = span / 1e6 * i / 5
        pen.text(left + width * i / 5, y + 2, f"{ms:,.0f} ms", 11, SOFT, f"text-anchor='{'end' if i == 5 else 'middle'}'")
    x = left
    for colour, name in KINDS.values():
        pen.rect(x, y + 14, 14, 14, colour, f"stroke='{LINE}' stroke-width='0.5'")
        pen.text(x + 20, y + 26, name, 12)
        x += 44 + 6.8 * len(name)
    height = y + 40
    label = escape(describe(frame), quote=True)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' height='{height:.0f}' role='img' "
        f"style='max-width:100%;height:auto' aria-label='{label}' {FONT}><title>{label}</title>"
        f"<rect x='0.5' y='0.5' width='{WIDTH - 1}' height='{height - 1:.0f}' rx='10' fill='{CARD}' stroke='{LINE}'/>"
        f"<g fill='{INK}'>{''.join(pen.parts)}</g></svg>"
    )


def _merged(segments: Sequence[tuple[str, str, int, int]]) -> list[tuple[str, str, int, int]]:
    """Neighbouring pieces of one request and kind as one: a picture of hundreds of steps stays small."""
    merged: list[tuple[str, str, int, int]] = []
    last: dict[str, int] = {}
    for name, kind, first, until in segments:
        at = last.get(name)
        if at is not None and merged[at][1] == kind and merged[at][3] == first:
            merged[at] = (name, kind, merged[at][2], until)
        else:
            last[name] = len(merged)
            merged.append((name, kind, first, until))
    return merged


def describe(frame: Frame) -> str:
    """The picture in a sentence, for a screen reader and for a page on which widgets don't run."""
    bills_ms = [way.bill_ms[min(frame.index, len(way.bill_ms) - 1)] for way in frame.ways]
    parts = ", ".join(f"{way.name} {bill:,.1f} ms" for way, bill in zip(frame.ways, bills_ms))
    return f"One load, two ways back, at {frame.now_ns / 1e6:,.0f} ms. The bill so far: {parts}"


def player(s12: ModuleType) -> Any:
    """The two timelines with their knobs; without ipywidgets the picture of the last moment."""
    try:
        import ipywidgets as w
    except ImportError:
        from IPython.display import SVG

        print("The knobs need ipywidgets (python3 course.py lab installs it); here is the last picture.")
        return SVG(svg(frames(s12, Setup())[-1]))
    from kit.errors import CourseError

    plain, style = Setup(), {"description_width": "90px"}
    knobs = {
        "machine": w.Dropdown(
            options=[(name_of(m), i) for i, m in enumerate(machines())], description="machine", style=style
        ),
        "blocks": w.IntSlider(plain.blocks, 100, 240, 4, description="GPU blocks", style=style),
        "long": w.IntSlider(plain.long, 100, 1300, 50, description="L's prompt", style=style),
        "small": w.IntSlider(plain.small, 1, 6, description="small ones", style=style),
        "cpu_blocks": w.IntSlider(plain.cpu_blocks, 0, 200, 10, description="CPU blocks", style=style),
        "gb_per_s": w.SelectionSlider(options=(6, 12, 25, 50), value=plain.gb_per_s, description="link, GB/s", style=style),
    }
    play = w.Play(value=1, min=1, max=1, interval=60)
    step = w.IntSlider(value=1, min=1, max=1, description="step", layout=w.Layout(width="600px"), style=style)
    w.jslink((play, "value"), (step, "value"))
    picture, state = w.HTML(), {"frames": []}  # type: ignore[var-annotated]

    def draw(_: Any = None) -> None:
        if state["frames"]:
            picture.value = svg(state["frames"][min(step.value, len(state["frames"])) - 1])

    def run(_: Any = None) -> None:
        try:
            state["frames"] = frames(s12, Setup(**{name: knob.value for name, knob in knobs.items()}))
        except CourseError as error:
            state["frames"] = []
            picture.value = f"<div class='kit-error' style='padding:1em;color:#D55E00'>{escape(str(error))}</div>"
            return
        play.max = step.max = len(state["frames"])
        step.value = step.max
        draw()

    for knob in knobs.values():
        knob.observe(run, "value")
    step.observe(draw, "value")
    run()
    rows = list(knobs.values())

    class Player(w.VBox):
        def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
            """In place of ipywidgets' dump of every knob: the picture in a sentence."""
            text = describe(state["frames"][-1]) if state["frames"] else "The simulator could not run."
            return {**(super()._repr_mimebundle_(**options) or {}), "text/plain": text}

    box = Player([w.HBox(rows[:3]), w.HBox(rows[3:]), w.HBox([play, step]), picture])
    box.add_class("kit-simulator")
    return box

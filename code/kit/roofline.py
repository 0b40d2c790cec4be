"""The pictures of s03: steps under a roofline, and a profile with its fit. Pure, standard library only; `knobs` needs ipywidgets.

The shape of the file: `Axes`, a plot with labelled axes; `frame` and `svg`, the simulator; `profile_svg`; `knobs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from types import ModuleType
from typing import Any

# Okabe and Ito's colours, which the colour-blind can tell apart, on an opaque card.
BLUE, ORANGE, RED, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"
CARD, INK, SOFT, LINE = "#ffffff", "#1f2933", "#5f6b7a", "#cbd2d9"
FONT = "font-family='system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif'"
WIDTH = 760


@dataclass
class Axes:
    """A rectangle with an x and a y range, which turns data into SVG elements."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False
    parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""

        def share(value: float, low: float, high: float) -> float:
            if self.log:
                value, low, high = math.log(value), math.log(low), math.log(high)
            return (value - low) / (high - low)

        return self.left + share(x, *self.x) * self.width, self.top + (1 - share(y, *self.y)) * self.height

    def ticks(self, xs: Iterable[float], ys: Iterable[float], x_label: str, y_label: str, numbers: bool = True) -> None:
        bottom, right = self.top + self.height, self.left + self.width
        for value in xs:
            x = self.at(value, self.y[0])[0]
            self.parts.append(f"<line x1='{x:.1f}' y1='{self.top}' x2='{x:.1f}' y2='{bottom}' stroke='{LINE}'/>")
            if numbers:
                self.text(x, bottom + 15, f"{value:,g}", 11, SOFT, "middle")
        for value in ys:
            y = self.at(self.x[0], value)[1]
            self.parts.append(f"<line x1='{self.left}' y1='{y:.1f}' x2='{right}' y2='{y:.1f}' stroke='{LINE}'/>")
            self.text(self.left - 6, y + 4, f"{value:,g}", 11, SOFT, "end")
        if numbers:
            self.text(self.left + self.width / 2, bottom + 32, x_label, 12, INK, "middle")
        self.text(self.left, self.top - 7, y_label, 12, INK)

    def text(self, x: float, y: float, text: str, size: float = 12, fill: str = INK, anchor: str = "start") -> None:
        """Text at a place in pixels."""
        self.parts.append(
            f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{fill}' text-anchor='{anchor}'>{escape(text)}</text>"
        )

    def line(self, points: Sequence[tuple[float, float]], stroke: str, more: str = "stroke-width='2'") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
        self.parts.append(f"<polyline points='{path}' fill='none' stroke='{stroke}' {more}/>")

    def dot(self, x: float, y: float, fill: str, r: float = 3, title: str = "") -> None:
        cx, cy = self.at(x, y)
        inside = f"><title>{escape(title)}</title></circle>" if title else "/>"
        self.parts.append(f"<circle cx='{cx:.1f}' cy='{cy:.1f}' r='{r}' fill='{fill}'{inside}")


def page(height: float, label: str, parts: Iterable[str]) -> str:
    """SVG elements on an opaque card."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:g}' width='{WIDTH}' role='img' "
        f"aria-label='{escape(label, quote=True)}' {FONT}>"
        f"<rect width='{WIDTH}' height='{height:g}' fill='{CARD}'/>{''.join(parts)}</svg>"
    )


# The simulator


@dataclass(frozen=True)
class Setup:
    """What the knobs of the roofline say: a step of `decodes` with `context` stored each, and a prompt chunk beside them."""

    cost: int = 0  # its place in s03.COSTS
    decodes: int = 16
    context: int = 500
    prompt: int = 0


@dataclass(frozen=True)
class Frame:
    """A step on the roofline. tflops: what the profile makes of it; roof_tflops: what the data sheet would allow."""

    label: str
    gpu: Any
    intensity: float
    tflops: float
    roof_tflops: float
    ms: float
    roof_ms: float
    by_memory: bool
    twice: int


def frame(s03: Any, setup: Setup) -> Frame:
    """All that the picture shows of a setup. Its step computes something: a decode or a prompt token."""
    cost = s03.COSTS[setup.cost]
    gpu = {one.name: one for one in (s03.A100, s03.H100, s03.RTX_4090)}[cost.gpu]
    model = s03.LLAMA2_7B if cost.model == s03.LLAMA2_7B.name else s03.LLAMA3_8B
    step = [s03.Chunk(1, setup.context)] * setup.decodes + ([s03.Chunk(setup.prompt)] if setup.prompt else [])
    work, moved = s03.flops(model, step), s03.traffic(model, step)
    ms = cost.step_ns(setup.decodes + setup.prompt, setup.decodes * setup.context) / 1e6
    roof_ms = s03.roofline_ms(gpu, work, moved)
    return Frame(
        cost.label, gpu, work / moved, work / ms / 1e9, work / roof_ms / 1e9, ms, roof_ms,
        work / moved < gpu.ridge, s03.twice(cost, setup.context),
    )  # fmt: skip


def svg(frames: Sequence[tuple[str, Frame]]) -> str:
    """Steps under the roofline of their GPU, which is that of the first: (name, frame) each."""
    first = frames[0][1]
    gpu = first.gpu
    axes = Axes(70, 62, WIDTH - 100, 300, (0.5, 5000), (0.5, 2000), log=True)
    axes.text(16, 24, f"{gpu.name}: {gpu.bytes_per_s / 1e12:.3g} TB/s up to {gpu.ridge:.0f} FLOPs a byte, "
                      f"then {gpu.flops_per_s / 1e12:.0f} TFLOP/s", 15)  # fmt: skip
    axes.ticks((1, 10, 100, 1000), (1, 10, 100, 1000), "arithmetic intensity, FLOPs per byte moved", "TFLOP/s")
    peak = gpu.flops_per_s / 1e12
    axes.line([(0.5, 0.5 * gpu.bytes_per_s / 1e12), (gpu.ridge, peak), (5000, peak)], INK)
    axes.line([(gpu.ridge, 0.5), (gpu.ridge, peak)], SOFT, "stroke-dasharray='4 4'")
    for name, one in frames:
        colour = BLUE if one.by_memory else ORANGE
        axes.line([(one.intensity, one.tflops), (one.intensity, one.roof_tflops)], colour, "stroke-width='1'")
        axes.dot(one.intensity, one.tflops, colour, 5, f"{name}: {one.ms:.2f} ms, roofline {one.roof_ms:.2f} ms")
        x, y = axes.at(one.intensity, one.tflops)
        right = x < WIDTH - 160
        axes.text(x + 9 if right else x - 9, y + 16, name, 12, colour, "start" if right else "end")
    axes.text(
        16,
        424,
        f"The roof is the data sheet's; dots are {first.label}. Blue: memory decides, orange: arithmetic.",
        12,
        SOFT,
    )
    return page(438, f"Steps under the roofline of one {gpu.name}", axes.parts)


def sentence(one: Frame, setup: Setup) -> str:
    """The frame in words."""
    decides = "memory" if one.by_memory else "arithmetic"
    return (
        f"{one.intensity:.1f} FLOPs a byte: {decides} decides. {one.ms:.2f} ms ({one.label}); the roofline allows "
        f"{one.roof_ms:.2f} ms. With {setup.context:,} tokens stored each, {one.twice:,} decodes take twice the time of one."
    )


def picture(s03: Any, setup: Setup) -> str:
    """A setup as HTML: the sentence, then the picture. The learner's own functions are called at each redraw."""
    if not setup.decodes and not setup.prompt:
        setup = replace(setup, decodes=1)
    one = frame(s03, setup)
    parts = [f"{setup.decodes} decode{'s' if setup.decodes > 1 else ''}"] if setup.decodes else []
    parts += [f"{setup.prompt:,} of a prompt"] if setup.prompt else []
    return f"<p>{escape(sentence(one, setup))}</p>{svg([(' + '.join(parts), one)])}"


def knobs(s03: ModuleType) -> Any:
    """The roofline with sliders; without ipywidgets the picture alone."""
    try:
        import ipywidgets as w
    except ImportError:
        from IPython.display import HTML

        print("The knobs need ipywidgets (python3 course.py lab installs it); here is a still picture.")
        return HTML(picture(s03, Setup()))
    first, wide = Setup(), {"description_width": "90px"}
    names = [(cost.label.removeprefix("modelled: "), i) for i, cost in enumerate(s03.COSTS)]
    inputs = {
        "cost": w.Dropdown(options=names, value=first.cost, description="profile", style=wide),
        "decodes": w.IntSlider(first.decodes, 0, 512, description="decodes", style=wide),
        "context": w.IntSlider(first.context, 0, 8000, 100, description="stored each", style=wide),
        "prompt": w.IntSlider(first.prompt, 0, 4096, 32, description="prompt", style=wide),
    }
    html = w.HTML(picture(s03, first))

    def redraw(_: Any) -> None:
        html.value = picture(s03, Setup(**{name: knob.value for name, knob in inputs.items()}))

    for knob in inputs.values():
        knob.observe(redraw, "value")
    box = w.VBox([*inputs.values(), html])
    box.add_class("kit-simulator")
    return box


# The profile


def profile_svg(fit: Any, points: Sequence[tuple[float, float]], table: Sequence[tuple[float, float]], label: str) -> str:
    """A profile with its fit and the interpolated table above, the fit's residuals below. x: tokens in the step."""
    last = round(points[-1][0])
    above = Axes(60, 62, WIDTH - 90, 240, (0, last + 8), (0, 30))
    above.text(16, 24, f"Flat, then a line, then the stairs: what 8 more tokens cost ({label})", 15)
    marks = range(0, last + 1, 32)
    above.ticks(marks, range(0, 31, 10), "", "ms per step", numbers=False)
    above.line([(1, fit.step_ms(1)), (fit.knee(), fit.floor_ms), (last, fit.step_ms(last))], ORANGE)
    above.line([*((n, ms) for n, ms in table if n <= last), (last, _between(table, last))], GREEN, "stroke-dasharray='5 4'")
    for n, ms in points:
        above.dot(n, ms, BLUE, 3, f"{n} tokens: {ms:.2f} ms")
    names = (("published profile", BLUE), ("fit of ten points", ORANGE), ("ten points, joined", GREEN))
    for line, (name, colour) in enumerate(names):
        above.text(80, 80 + 17 * line, name, 12, colour)
    x, y = above.at(fit.knee(), fit.floor_ms)
    above.text(x, y + 22, f"knee: {fit.knee():.0f} tokens", 12, ORANGE, "middle")
    steps = [(after[0], before[1], after[1]) for before, after in zip(points, points[1:]) if after[1] > 1.08 * before[1]]
    for at, low, high in steps:
        x, y = above.at(at, high)
        above.text(x - 6, y - 6, f"+{100 * (high / low - 1):.0f} %", 12, RED, "end")
    below = Axes(60, 340, WIDTH - 90, 110, (0, last + 8), (-25, 25))
    below.ticks(marks, (-20, 0, 20), "tokens in the step", "fit minus profile, %")
    for n, ms in points:
        residual = 100 * (fit.step_ms(n) / ms - 1)
        below.line([(n, 0), (n, residual)], RED, "stroke-width='3'")
    return page(500, f"Profile, fit and residuals, {label}", above.parts + below.parts)


def _between(table: Sequence[tuple[float, float]], n: float) -> float:
    (n0, ms0), (n1, ms1) = next((a, b) for a, b in zip(table, table[1:]) if a[0] <= n <= b[0])
    return ms0 + (ms1 - ms0) * (n - n0) / (n1 - n0)


def figures(s03: Any) -> list[tuple[str, str]]:
    """The lesson's pictures: (file name, SVG)."""
    from kit.step_cost_experiments import EVERY_8

    cost = s03.A100_LLAMA3_8B
    shown = [(f"{batch} decode{'s' if batch > 1 else ''}", frame(s03, Setup(decodes=batch))) for batch in (1, 16, 64, 256)]
    shown.append(("prefill 2,048", frame(s03, Setup(decodes=0, prompt=2048))))
    return [
        ("s03_roofline.svg", svg(shown)),
        ("s03_profile.svg", profile_svg(s03.fit(cost.profile), EVERY_8, cost.profile, cost.label)),
    ]

"""The simulators' picture: `svg(frame)` draws one step. Pure, standard library only; kit.simulators has the facts.

The shape of the file: a small pen; the panels of s10's picture; the slots of s08 and s09; `svg`, which puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from operator import itemgetter

from kit.simulators import S10, Frame, Member, Run, Totals, Why, in_words, utilisation, why

WIDTH = 900
MARGIN = 16
INNER = WIDTH - 2 * MARGIN
ROW = 22  # height of a line in a queue

# Okabe and Ito's colours, which the colour-blind can tell apart. The card is opaque: it reads on light and dark pages.
DECODE, PREFILL, RECOMPUTE, BLAME = "#0072B2", "#E69F00", "#CC79A7", "#D55E00"
KINDS = {"decode": DECODE, "prefill": PREFILL, "recompute": RECOMPUTE}
CARD, INK, SOFT, LINE, EMPTY, STORED, WARM = "#ffffff", "#1f2933", "#5f6b7a", "#cbd2d9", "#eef1f4", "#8b97a5", "#fff4ec"
TINTS = ("#56B4E9", "#F0C75E", "#66C2A5", "#E39BC2", "#8DA0CB", "#E78A5B", "#B8C960", "#B7A79B", "#5FA8A0", "#C9A4F0")
FONT = "font-family='system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif'"

Point = tuple[float, float]


def _width(text: str, size: float) -> float:
    """About how many pixels a text takes; nobody can measure it here, so rather too many."""
    return size * sum(0.36 if letter in " .,:;'!()|/fijlrt" else 0.66 for letter in text)


def _fit(text: str, width: float, size: float = 12) -> str:
    """`text`, cut with an ellipsis to about `width` pixels."""
    room = int(width / (0.56 * size))
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + "…"


class Pen:
    """Collects SVG elements."""

    def __init__(self, key: str):
        self.key, self.parts = key, []  # type: tuple[str, list[str]]

    def text(self, x: float, y: float, text: str, size: float = 12, fill: str = INK, more: str = "") -> None:
        self.parts.append(f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{fill}' {more}>{escape(text)}</text>")

    def rect(self, x: float, y: float, w: float, h: float, fill: str, more: str = "", title: str = "") -> None:
        inside = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self.parts.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(w, 0):.1f}' height='{h:.1f}' fill='{fill}' {more}{inside}"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = LINE, more: str = "") -> None:
        self.parts.append(f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{stroke}' {more}/>")

    def hatched(self, x: float, y: float, w: float, h: float, title: str = "") -> None:
        self.rect(x, y, w, h, f"url(#hatch{self.key})", title=title)

    def arrow(self, start: Point, end: Point, bend: Point) -> None:
        """From who waits to who is to blame."""
        path = f"M{start[0]:.1f},{start[1]:.1f} Q{bend[0]:.1f},{bend[1]:.1f} {end[0]:.1f},{end[1]:.1f}"
        for colour, width, head in ((CARD, 6, ""), (BLAME, 2.5, f"marker-end='url(#head{self.key})'")):
            self.parts.append(
                f"<path class='blame' d='{path}' fill='none' stroke='{colour}' stroke-width='{width}' {head}/>"
            )


def svg(
    frame: Frame,
    selected: str | None = None,
    pinned: Run | None = None,
    versus: Frame | None = None,
    on_click: str = "",
    key: str = "",
) -> str:
    """One step as an SVG of 900 pixels' width.

    selected: id of the waiting request to explain; the head of the queue if it is None or does not wait. pinned: a run to
    lay beside this one. versus: s08's and s09's picture only: the same step under the other scheduler. on_click: JavaScript
    that a click on a waiting request runs, with its id in `this.dataset.id`. key: keeps the ids of two pictures on one
    page apart.
    """
    pen = Pen(key)
    y = _heading(pen, frame)
    if frame.run.setup.lesson == S10:
        y = _queues(pen, frame, selected, on_click, y)
        y = _step(pen, frame, y)
        y = _memory(pen, frame, y)
        y = _history(pen, frame, pinned, y)
    else:
        y = _slots(pen, [frame] if versus is None else [versus, frame], selected, on_click, y)
        y = _history(pen, frame, pinned, y, ("running",), versus)
    arrow = (
        f"<marker id='head{key}' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='5' markerHeight='5' orient='auto'>"
        f"<path d='M0,0 L8,4 L0,8 z' fill='{BLAME}'/></marker>"
    )
    return card(pen, y, describe(frame), key, arrow)


def card(pen: Pen, height: float, words: str, key: str, defs: str = "") -> str:
    """The picture that a pen has drawn, on a card. words: it in a sentence. defs: what it refers to besides the hatching."""
    label = escape(words, quote=True)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' height='{height:.0f}' "
        f"role='img' style='max-width:100%;height:auto' aria-label='{label}' {FONT}><title>{label}</title><defs>"
        f"<pattern id='hatch{key}' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
        f"<rect width='6' height='6' fill='{CARD}'/><line x1='0' y1='0' x2='0' y2='6' stroke='#b6bec8' stroke-width='2.4'/>"
        f"</pattern>{defs}</defs>"
        f"<rect x='0.5' y='0.5' width='{WIDTH - 1}' height='{height - 1:.0f}' rx='10' fill='{CARD}' stroke='{LINE}'/>"
        + "".join(pen.parts)
        + "</svg>"
    )


def describe(frame: Frame) -> str:
    """The picture in a sentence, for a screen reader."""
    totals, run = frame.totals, frame.run
    return (
        f"{run.setup.title}. Step {frame.number}: {len(frame.running)} running, {len(frame.waiting)} waiting, "
        f"{totals.finished} of {len(run.requests)} finished"
    )


def _ms(value: float) -> str:
    return "–" if value != value else f"{value:,.0f} ms" if value < 10_000 else f"{value / 1e3:,.1f} s"


def _colour(run: Run, request_id: str) -> str:
    return TINTS[run.places[request_id] % len(TINTS)]


def _heading(pen: Pen, frame: Frame) -> float:
    run = frame.run
    last = run.frames[-1].number
    pen.text(MARGIN, 28, _fit(run.setup.title, 520, 17), 17, more="font-weight='700'")
    state = " · stuck for ever" if frame.is_stuck else ""
    clock = f"step {frame.number:,} of {last:,} · {frame.start_ns / 1e9:.3f} s{state}"
    pen.text(WIDTH - MARGIN, 28, clock, 14, BLAME if state else INK, "text-anchor='end' font-weight='600'")
    pen.text(MARGIN, 46, _limits(run), 12, SOFT)
    pen.text(WIDTH - MARGIN, 46, f"times {run.cost_label}", 11, SOFT, "text-anchor='end'")
    if run.setup.config.reject_unservable:
        return 58
    pen.text(MARGIN, 64, NO_CHECK, 12, BLAME)
    return 76


NO_CHECK = "Runs with reject_unservable=False: the check at add() would have refused what can never run."


def _limits(run: Run) -> str:
    config = run.setup.config
    if run.setup.lesson != S10:
        return f"{config.max_num_seqs} slots; nothing else is counted"
    return (
        f"{config.policy} · budget {config.max_num_batched_tokens:,} tokens · {config.max_num_seqs} seats · "
        f"{config.num_blocks:,} blocks of {config.block_size}"
    )


# s10: the two queues.


def _queues(pen: Pen, frame: Frame, selected: str | None, on_click: str, top: float) -> float:
    """Waiting on the left, running on the right, below them why the selected one waits."""
    run, config = frame.run, frame.run.setup.config
    rows = _rows(run)
    left, right, split = MARGIN, MARGIN + 330, 290
    head = frame.waiting[0][0].id if frame.waiting else None
    chosen = why(frame, selected) if selected else None
    chosen = chosen or (why(frame, head) if head else None)
    blame = chosen.blame if chosen else None
    pen.text(left, top + 14, f"Waiting {len(frame.waiting):,}", 14, more="font-weight='600'")
    seats = f"Running {len(frame.running):,} of {config.max_num_seqs:,} seats"
    pen.text(right, top + 14, seats, 14, more="font-weight='600'")
    _key(pen, WIDTH - MARGIN, top + 14, (("stored", STORED), ("this step", DECODE), ("to come", EMPTY)))
    top += 22

    waiting = _visible([request.id for request, _ in frame.waiting], rows, chosen.request if chosen else None, blame)
    places: dict[str, Point] = {}
    evicted = {request.id for request in frame.batch.preempted}
    for i, request_id in enumerate(waiting):
        y = top + i * ROW
        places[request_id] = left + split, y + ROW / 2
        _waiting_row(pen, frame, request_id, left, y, split, chosen.request if chosen else None, evicted, on_click)
    hidden = len(frame.waiting) - len(waiting)
    if hidden:
        pen.text(left + 4, top + rows * ROW + 13, f"+ {hidden:,} more behind", 12, SOFT)
    if not frame.waiting:
        pen.text(left + 4, top + 15, "nobody waits", 12, SOFT)

    members = {member.request.id: member for member in frame.running}
    spots: dict[str, Point] = {}
    for i, request_id in enumerate(_visible(list(members), rows, blame)):
        y = top + i * ROW
        spots[request_id] = right, y + ROW / 2
        _running_row(pen, frame, members[request_id], right, y, WIDTH - MARGIN - right, request_id == blame)
    if len(members) > rows:
        pen.text(right + 4, top + rows * ROW + 13, f"+ {len(members) - rows:,} more", 12, SOFT)
    if not members:
        pen.text(right + 4, top + 15, "nobody runs", 12, SOFT)

    if chosen and blame and chosen.request in places:
        start = places[chosen.request]
        if blame in spots:
            end = spots[blame][0] - 3, spots[blame][1]
            pen.arrow(start, end, ((start[0] + end[0]) / 2, start[1]))
        elif blame in places and blame != chosen.request:
            end = places[blame]
            pen.arrow((start[0] + 1, start[1]), (end[0] + 3, end[1]), (start[0] + 46, (start[1] + end[1]) / 2))
        else:
            x, y = start
            pen.arrow((x, y - 5), (x + 2, y + 6), (x + 44, y))
    top += rows * ROW + 22
    _verdict(pen, frame, chosen, top)
    return top + 46


def _rows(run: Run) -> int:
    """Lines of the two queues: the same in every frame of a run, so that nothing jumps while it plays."""
    most = max((max(len(frame.waiting), len(frame._running)) for frame in run.frames), default=0)
    return min(max(most, 4), 9)


def _visible(ids: list[str], rows: int, *needed: str | None) -> list[str]:
    """The first ids that fit; those needed further down take the last lines."""
    shown = ids[:rows]
    extra = [i for i in dict.fromkeys(needed) if i in ids and i not in shown]
    return shown[: rows - len(extra)] + extra


def _clickable(on_click: str) -> str:
    if not on_click:
        return ""
    script = escape(on_click, quote=True)
    keys = escape("if (event.key === 'Enter') this.onclick()", quote=True)
    return f"role='button' tabindex='0' style='cursor:pointer' onclick='{script}' onkeydown='{keys}'"


def _waiting_row(
    pen: Pen,
    frame: Frame,
    request_id: str,
    x: float,
    y: float,
    w: float,
    chosen: str | None,
    evicted: set[str],
    on_click: str,
) -> None:
    picked = request_id == chosen
    words = in_words(frame.reasons[request_id]) if request_id in frame.reasons else ""
    if request_id in evicted:
        words = "evicted in this step"
    click = _clickable(on_click)
    pen.parts.append(f"<g class='waiting' data-id='{escape(request_id, quote=True)}' {click}>")
    edge = f"stroke='{BLAME}' stroke-width='2'" if picked else f"stroke='{LINE}'"
    pen.rect(x, y + 1, w, ROW - 3, WARM if picked else CARD, f"rx='4' {edge}", f"{request_id}: {words}")
    pen.rect(x + 5, y + 6, 9, 9, _colour(frame.run, request_id), "rx='2'")
    pen.text(x + 19, y + 15, _fit(request_id, 44), 12, more="font-weight='600'")
    pen.text(x + 62, y + 15, _fit(words, w - 68, 11.5), 11.5, BLAME if request_id in evicted else INK)
    pen.parts.append("</g>")


def _running_row(pen: Pen, frame: Frame, member: Member, x: float, y: float, w: float, blamed: bool) -> None:
    """A progress bar over all that the request can become: stored, this step's tokens, what is still to come."""
    request = member.request
    total = len(request.prompt) + request.max_tokens
    bar_x, bar = x + 66, w - 66 - 200
    n = frame.batch.tokens.get(request, 0)
    kind = next((kind for r, _, kind in frame.kinds if r is request), "decode")
    if blamed:
        pen.rect(x, y + 1, w, ROW - 3, WARM, f"rx='4' stroke='{BLAME}' stroke-width='2'")
    pen.rect(x + 5, y + 6, 9, 9, _colour(frame.run, request.id), "rx='2'")
    pen.text(x + 19, y + 15, _fit(request.id, 46), 12, more="font-weight='600'")
    pen.rect(
        bar_x, y + 5, bar, 11, EMPTY, "rx='2'", f"{request.id}: {member.computed:,} of {member.known:,} known tokens stored"
    )
    scale = bar / total
    pen.rect(bar_x, y + 5, (member.computed - n) * scale, 11, STORED)
    pen.rect(bar_x + (member.computed - n) * scale, y + 5, max(n * scale, 2.0 if n else 0), 11, KINDS[kind])
    prompt_x = bar_x + len(request.prompt) * scale
    pen.line(prompt_x, y + 3, prompt_x, y + 18, INK, "stroke-width='1'")
    out = member.known - len(request.prompt)
    words = f"{len(request.prompt):,} + {out:,}/{request.max_tokens:,} out, {len(member.blocks):,} blocks"
    pen.text(x + w - 4, y + 15, words, 11, SOFT, "text-anchor='end'")


def _key(pen: Pen, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
    """A legend that ends at x."""
    for words, colour in reversed(entries):
        pen.text(x, y, words, 11, SOFT, "text-anchor='end'")
        x -= _width(words, 11) + 14
        pen.rect(x, y - 9, 10, 10, colour, f"rx='2' stroke='{LINE}'")
        if colour == DECODE and words == "this step":
            pen.rect(x + 5, y - 9, 5, 10, PREFILL)
        x -= 12


def _verdict(pen: Pen, frame: Frame, chosen: Why | None, y: float) -> None:
    """The rule and the numbers that hold the selected request back, then who is to blame."""
    pen.rect(MARGIN, y, INNER, 38, WARM if chosen else EMPTY, "rx='6'")
    if chosen is None:
        pen.text(MARGIN + 10, y + 23, "Everybody who is here has been let in.", 12.5, SOFT)
        return
    pen.text(
        MARGIN + 10, y + 16, _fit(f"{chosen.request} waits. Rule “{chosen.rule}”: {chosen.text}.", INNER - 20, 12.5), 12.5,
        more="class='why' font-weight='600'",
    )  # fmt: skip
    behind = len(frame.waiting) - 1
    words = f"To blame: {chosen.blame_text}." if chosen.blame else ""
    if chosen.blame == chosen.request and behind:
        words = f"{words[:-1]}; the {behind:,} behind it wait with it."
    pen.text(MARGIN + 10, y + 32, _fit(words, INNER - 20, 12.5), 12.5, BLAME, "class='blamed'")


# s10: the step against the budget, the pool, the counters.


def _step(pen: Pen, frame: Frame, y: float) -> float:
    config = frame.run.setup.config
    budget = config.max_num_batched_tokens
    sums = dict.fromkeys(KINDS, 0)
    for _, n, kind in frame.kinds:
        sums[kind] += n
    total = sum(sums.values())
    pen.text(MARGIN, y + 14, "This step", 14, more="font-weight='600'")
    pen.text(MARGIN + 78, y + 14, f"{total:,} of {budget:,} tokens, {budget - total:,} left", 12, SOFT)
    _key(pen, WIDTH - MARGIN, y + 14, [(f"{kind} {sums[kind]:,}", colour) for kind, colour in KINDS.items()])
    y += 22
    pen.hatched(MARGIN, y, INNER, 24, f"{budget - total:,} tokens of the budget are not used")
    x, scale = float(MARGIN), INNER / max(budget, total)
    for kind, group in groupby(frame.kinds, key=itemgetter(2)):
        left = x
        parts = list(group)
        pen.rect(x, y, sum(n for _, n, _ in parts) * scale, 24, KINDS[kind])
        for request, n, _ in parts:
            w = n * scale
            if x > left and w > 3:
                pen.line(x, y, x, y + 24, CARD, "stroke-width='1'")
            label = f"{request.id} {n:,}" if w >= 7 * len(f"{request.id} {n:,}") else request.id
            if w >= 7.5 * len(label):
                ink = CARD if kind == "decode" else INK
                pen.text(x + w / 2, y + 16, label, 12, ink, "text-anchor='middle' font-weight='600'")
            x += w
    pen.rect(MARGIN, y, INNER, 24, "none", f"stroke='{SOFT}'")
    return y + 36


def _memory(pen: Pen, frame: Frame, y: float) -> float:
    run, config = frame.run, frame.run.setup.config
    w, height, n = 430.0, 108.0, config.num_blocks
    used = frame.used_blocks
    pen.text(MARGIN, y + 14, "KV blocks", 14, more="font-weight='600'")
    mark = config.watermark_blocks
    kept = f", watermark {mark:,}" if mark else ", no watermark"
    pen.text(MARGIN + 82, y + 14, f"{used:,} of {n:,} used, {n - used:,} free{kept}", 12, SOFT)
    top = y + 24
    if n <= 240:
        _grid(pen, frame, MARGIN, top, w, height - 32)
    else:
        pen.rect(MARGIN, top, w, 40, EMPTY, f"stroke='{LINE}'")
        x = float(MARGIN)
        for member in frame.running:
            step = len(member.blocks) * w / n
            title = f"{member.request.id}: {len(member.blocks):,} blocks"
            pen.rect(x, top, step, 40, _colour(run, member.request.id), f"stroke='{CARD}' stroke-width='0.5'", title)
            x += step
        if mark:
            edge = MARGIN + w * config.usable_blocks / n
            pen.line(edge, top - 4, edge, top + 44, BLAME, "stroke-width='2' stroke-dasharray='4 2'")
            pen.text(
                MARGIN + w, top + 58, f"admissions stop at {config.usable_blocks:,} blocks", 11, BLAME, "text-anchor='end'"
            )
    _counters(pen, frame, MARGIN + w + 24, y)
    return y + height + 4


def _grid(pen: Pen, frame: Frame, x: float, y: float, w: float, h: float) -> None:
    """Every block of the pool, in the colour of its owner. Reserved by the watermark: a dashed edge, from the end."""
    config = frame.run.setup.config
    n = config.num_blocks
    cell = min(next(size for size in range(44, 3, -1) if (w // size) * (h // size) >= n or size == 4), 44)
    columns = int(w // cell)
    owner = {block: member.request.id for member in frame.running for block in member.blocks}
    free = [block for block in range(n) if block not in owner]
    kept = set(free[len(free) - min(config.watermark_blocks, len(free)) :])
    for block in range(n):
        cx, cy = x + block % columns * cell, y + block // columns * cell
        who = owner.get(block)
        edge = f"stroke='{BLAME}' stroke-dasharray='3 2'" if block in kept else f"stroke='{LINE}'"
        fill = _colour(frame.run, who) if who else CARD
        pen.rect(cx + 0.5, cy + 0.5, cell - 2, cell - 2, fill, f"rx='2' {edge}", f"block {block}: {who or 'free'}")
        if who and cell >= 7.5 * len(who) + 4:
            pen.text(cx + cell / 2 - 0.5, cy + cell / 2 + 4, who, 12, INK, "text-anchor='middle' font-weight='600'")


def _counters(pen: Pen, frame: Frame, x: float, y: float) -> None:
    totals, run = frame.totals, frame.run
    refused = f"{totals.refused} refused" if run.report.refused else ""
    tiles = (
        ("finished", f"{totals.finished} of {len(run.requests)}", refused),
        ("TTFT mean", _ms(totals.ttft_mean_ms), "so far, modelled"),
        ("TTFT p95", _ms(totals.ttft_p95_ms), "so far, modelled"),
        ("preemptions", f"{totals.preemptions:,}", ""),
        ("prefill tokens", f"{totals.prefill_tokens:,}", ""),
        ("decode tokens", f"{totals.decode_tokens:,}", ""),
        ("recomputed", f"{totals.recomputed_tokens:,}", "tokens thrown away"),
        ("rec/new", f"{_rec_new(totals):.0%}", ""),
    )
    w = (WIDTH - MARGIN - x) / 4
    for i, (name, value, small) in enumerate(tiles):
        tx, ty = x + i % 4 * w, y + i // 4 * 54
        pen.rect(tx, ty + 2, w - 6, 48, EMPTY, "rx='6'")
        pen.text(tx + 7, ty + 16, name, 10.5, SOFT)
        warn = name in ("preemptions", "recomputed", "rec/new") and value not in ("0", "0%")
        pen.text(tx + 7, ty + 33, value, 15, BLAME if warn else INK, "font-weight='700'")
        pen.text(tx + 7, ty + 45, small, 9, SOFT)


def _rec_new(totals: Totals) -> float:
    new = totals.prefill_tokens + totals.decode_tokens - totals.recomputed_tokens
    return totals.recomputed_tokens / new if new > 0 else 0.0


# The strips: the run so far, over a pinned one.

STRIPS = {"running": "requests running", "blocks": "KV blocks used", "tokens": "tokens per step"}


def _history(
    pen: Pen, frame: Frame, pinned: Run | None, y: float, names: Sequence[str] = tuple(STRIPS), versus: Frame | None = None
) -> float:
    run = frame.run
    runs = [run, *([pinned] if pinned else []), *([versus.run] if versus else [])]
    steps = max(len(run.frames) for run in runs)
    pen.text(MARGIN, y + 14, "The run so far", 14, more="font-weight='600'")
    if pinned:
        words = _fit(f"dashed: pinned run, {_headline(pinned)}", 690, 11.5)
        pen.text(WIDTH - MARGIN, y + 14, words, 11.5, SOFT, "text-anchor='end' class='pinned'")
    y += 22
    label, h = 126, 34
    x, w = MARGIN + label, INNER - label
    for name in names:
        series = run.series[name]
        other = pinned.series[name] if pinned else []
        top = max([*series, *other, 1])
        pen.text(MARGIN, y + 15, STRIPS[name], 11.5)
        pen.text(MARGIN, y + 29, f"{series[frame.index]:,} now, most {top:,}", 10.5, SOFT)
        pen.rect(x, y, w, h, EMPTY)
        now = frame.index + 1
        area = _steps(series[:now], steps, top, x, y, w, h)
        floor = f"V{y + h:.1f} H{x:.1f} z"
        pen.parts.append(f"<path d='{area} {floor}' fill='{DECODE}' fill-opacity='0.28' stroke='none'/>")
        pen.parts.append(f"<path d='{area}' fill='none' stroke='{DECODE}' stroke-width='1.3'/>")
        if pinned:
            ghost = _steps(other, steps, top, x, y, w, h)
            pen.parts.append(
                f"<path class='ghost' d='{ghost}' fill='none' stroke='{INK}' stroke-width='1.2' stroke-dasharray='4 3'/>"
            )
        if now <= len(run.frames):
            cursor = x + w * now / steps
            pen.line(cursor, y - 2, cursor, y + h + 2, BLAME, "stroke-width='1.5'")
        y += h + 6
    pen.text(x, y + 8, "step 1", 10.5, SOFT)
    pen.text(x + w, y + 8, f"step {max(run.frames[-1].number for run in runs):,}", 10.5, SOFT, "text-anchor='end'")
    return y + 18


def _headline(run: Run) -> str:
    totals = run.frames[-1].totals
    words = f"{totals.finished} of {len(run.requests)} finished"
    if run.setup.lesson == S10:
        config = run.setup.config
        limits = f"{config.policy}, budget {config.max_num_batched_tokens:,}, {config.num_blocks:,} blocks"
        return f"{limits}: {words}, preemptions {totals.preemptions}, TTFT p95 {_ms(totals.ttft_p95_ms)}"
    return f"{words} in {len(run.frames)} steps, {utilisation(run.frames):.0%} of slots used"


def _steps(series: Sequence[int], steps: int, top: float, x: float, y: float, w: float, h: float) -> str:
    """A staircase; where several steps share a pixel it shows the highest, so that no spike is lost."""
    stride = max(1, -(-steps // int(w)))
    points = [max(series[i : i + stride]) for i in range(0, len(series), stride)]
    parts: list[str] = []
    width, last = w * stride / steps, None
    for i, value in enumerate(points):
        if value != last:
            level = y + h - (h - 2) * value / top
            parts.append(f"H{x + i * width:.1f} V{level:.1f}" if parts else f"M{x:.1f},{level:.1f}")
            last = value
    return " ".join(parts) + f" H{min(x + len(points) * width, x + w * len(series) / steps):.1f}"


# s08 and s09: slots over time.

NAMES = {"s08_static_batching": "Static batching", "s09_continuous_batching": "Continuous batching"}


def _slots(pen: Pen, frames: list[Frame], selected: str | None, on_click: str, y: float) -> float:
    """Who sits in which slot, step by step; an idle slot is hatched; the future is blank."""
    steps = max(len(frame.run.frames) for frame in frames)
    x, w = MARGIN + 50.0, INNER - 50.0
    for frame in frames:
        run, slots = frame.run, frame.run.setup.config.max_num_seqs
        row = 20 if slots <= 8 else 13
        now = frame.index + 1
        tokens = sum(run.series["running"][:now])
        pen.text(MARGIN, y + 14, NAMES[run.setup.lesson], 14, more="font-weight='600'")
        words = (
            f"{tokens:,} tokens in {now:,} step{'s' * (now != 1)} x {slots} slots: {tokens / (slots * now):.0%} of them used"
            f" · {frame.totals.finished} of {len(run.requests)} finished{', done' if frame.is_last else ''}"
        )
        pen.text(WIDTH - MARGIN, y + 14, words, 12, SOFT, "text-anchor='end'")
        y += 22
        pen.rect(x, y, w, slots * row, EMPTY)
        pen.hatched(x, y, w * now / steps, slots * row, "idle slots")
        for slot, request, first, last in run.slots:
            if first >= now or slot >= slots:
                continue
            left, width = x + w * first / steps, w * (min(last + 1, now) - first) / steps
            title = f"{request.id}: steps {first + 1} to {last + 1}"
            colour = _colour(run, request.id)
            pen.rect(left, y + slot * row + 1, width, row - 2, colour, f"rx='2' stroke='{CARD}' stroke-width='0.6'", title)
            if width >= 7.2 * len(request.id) + 2:
                label_y = y + slot * row + row / 2 + 4
                pen.text(left + width / 2, label_y, request.id, 11 if row > 14 else 9, INK, "text-anchor='middle'")
        for slot in range(slots):
            pen.text(x - 8, y + slot * row + row / 2 + 4, f"{slot + 1}", 10.5, SOFT, "text-anchor='end'")
        pen.text(MARGIN, y + slots * row / 2 + 4, "slot", 10.5, SOFT)
        cursor = x + w * now / steps
        pen.line(cursor, y - 3, cursor, y + slots * row + 3, BLAME, "stroke-width='1.5'")
        y += slots * row + 8
        y = _slot_queue(pen, frame, selected, on_click, (x, y), (cursor, row))
    return y


def _slot_queue(pen: Pen, frame: Frame, selected: str | None, on_click: str, corner: Point, edge_of_now: Point) -> float:
    """Who waits, and below it why. edge_of_now: where the past of the slots ends, and the height of a slot."""
    (x, y), (now_x, row) = corner, edge_of_now
    ids = [request.id for request, _ in frame.waiting]
    pen.text(MARGIN, y + 15, f"waits {len(ids)}", 11.5, SOFT)
    chosen = why(frame, selected) if selected else None
    chosen = chosen or (why(frame, ids[0]) if ids else None)
    click = _clickable(on_click)
    place = x + 8
    for i, request_id in enumerate(ids):
        width = 7.5 * len(request_id) + 12
        if place + width > WIDTH - MARGIN - 70:
            pen.text(place, y + 15, f"+ {len(ids) - i} more", 11.5, SOFT)
            break
        picked = chosen is not None and request_id == chosen.request
        edge = f"stroke='{BLAME}' stroke-width='2'" if picked else f"stroke='{LINE}'"
        pen.parts.append(f"<g class='waiting' data-id='{escape(request_id, quote=True)}' {click}>")
        pen.rect(place, y + 2, width, 18, _colour(frame.run, request_id), f"rx='4' {edge}", request_id)
        pen.text(place + width / 2, y + 15, request_id, 11.5, INK, "text-anchor='middle'")
        pen.parts.append("</g>")
        if picked and chosen is not None:
            seat = next(((s, a) for s, r, a, b in frame.run.slots if r.id == chosen.blame and a <= frame.index <= b), None)
            if seat is not None:
                middle = place + width / 2
                bottom = y - 8 - (frame.run.setup.config.max_num_seqs - seat[0] - 0.6) * row
                first_x = x + (now_x - x) * seat[1] / (frame.index + 1)
                end = min(max(middle, first_x + 5), max(now_x - 5, first_x + 2)), bottom
                pen.arrow((middle, y + 2), end, (middle, (y + bottom) / 2))
        place += width + 5
    if not ids:
        pen.text(place, y + 15, "nobody", 11.5, SOFT)
    y += 26
    if chosen is None:
        pen.text(x + 8, y + 8, "Everybody who is here has a slot." if frame.running else "Nothing is left to do.", 12, SOFT)
    else:
        pen.parts.append(
            f"<text x='{x + 8:.1f}' y='{y + 8:.1f}' font-size='12' fill='{INK}' class='why' font-weight='600'>"
            f"{escape(f'{chosen.request} waits. Rule “{chosen.rule}”: {chosen.text}.')}<tspan class='blamed' dx='8' "
            f"font-weight='400' fill='{BLAME}'>{escape(f'To blame: {chosen.blame_text}.')}</tspan></text>"
        )
    return y + 22

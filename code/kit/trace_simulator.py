"""A walk through a workload, step by step, with the explanation: s14's simulator without its knobs.

The shape of the file: `frames(workload, scheduler)` keeps every step of a replay, `svg(frame)` draws one. Both pure and standard
library only; kit.trace_widgets has the knobs. The sentences are those of `--explain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any

from kit.decisions import DecisionRun, Decisions, Divergence, first_divergence
from kit.drawing import (
    BLAME,
    CARD,
    DECODE,
    EMPTY,
    INK,
    INNER,
    KINDS,
    LINE,
    MARGIN,
    ROW,
    SOFT,
    STORED,
    TINTS,
    WARM,
    WIDTH,
    Pen,
    _clickable,
    _fit,
    _key,
    card,
)
from kit.explaining import Told, explaining, narrowed
from kit.parity import LESSON, RUNNING_EXAMPLE, find_trace
from kit.replay import replay

SENTENCES = 14  # lines of the explanation that a picture has room for
HIT = "#009E73"


@dataclass(frozen=True, slots=True)
class Member:
    """A running request when the step was decided. before: tokens stored before it, hit: of these, found in the cache now."""

    id: str
    prompt: int
    total: int  # prompt + max_tokens
    before: int
    hit: int
    n: int
    known: int
    blocks: tuple[int, ...]
    kind: str


@dataclass(slots=True)
class Frame:
    """One step: what was decided, what there was then, and what is said about it. index: its place in the film, from 0."""

    index: int
    step: int
    members: list[Member]
    waiting: list[str]
    owners: list[list[str]]  # of each block, by place in the pool
    cached: list[bool]  # has the block a name?
    unwritten: frozenset[int]  # those that have a name, and KV that nobody computed
    film: Film
    entry: dict[str, Any] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(member.n for member in self.members)


@dataclass(slots=True)
class Film:
    """A whole replay. found: its first difference from the decisions recorded in the workload, None if there is none."""

    title: str
    scheduler: Any
    compared: bool
    frames: list[Frame] = field(default_factory=list)
    found: Divergence | None = None
    ids: list[str] = field(default_factory=list)


class FilmRun(DecisionRun):
    """A DecisionRun that keeps what a picture of each step needs."""

    film: Film

    def decide(self) -> Any:
        batch = super().decide()
        pool = self.scheduler.pool
        owners: list[list[str]] = [[] for _ in range(pool.num_blocks)]
        members = []
        for request in self.scheduler.running:
            n = batch.tokens.get(request, 0)
            before = request.num_computed_tokens - n
            for block in request.blocks:
                owners[block].append(request.id)
            fed = "recompute" if request.num_preemptions else "prefill"
            kind = "decode" if before >= len(request.prompt) and before + 1 == request.num_tokens else fed
            hit = batch.hits.get(request, 0)
            total = len(request.prompt) + request.max_tokens
            known, blocks = request.num_tokens, tuple(request.blocks)
            members.append(Member(request.id, len(request.prompt), total, before, hit, n, known, blocks, kind))
        waiting = [request.id for request in self.scheduler.waiting]
        cached = [name is not None for name in pool.names]
        unwritten = frozenset(self.scheduler.unwritten)
        self.film.frames.append(
            Frame(len(self.film.frames), self.now, members, waiting, owners, cached, unwritten, self.film)
        )
        return batch

    def note(self, batches: tuple[Any, ...], finished: list[Any]) -> None:
        super().note(batches, finished)
        if batches:
            self.film.frames[-1].entry = self.steps[-1]
            self.film.frames[-1].told = self.told[-1][1]


def frames(workload: Mapping[str, Any], scheduler: Any = None, title: str = "", **options: Any) -> list[Frame]:
    """Every step of a workload, decided by `scheduler`: s14's own, the learner's code where it is written, if None.

    options: of the scheduler's config, under vLLM's names or ours; with any that the workload does not have already, its
    recorded decisions are no longer what it is compared with.
    """
    scheduler = scheduler or import_module(LESSON).UnifiedScheduler
    config = {**workload["config"], **options}
    same = all(workload["config"].get(key) == value for key, value in options.items())
    compared = same and "trace" in workload
    film = Film(title or str(workload.get("name", "a workload")), None, compared)

    class Filming(FilmRun):
        pass

    Filming.film = film
    film.ids = [entry["id"] for entry in workload["requests"]]

    def make(config: Any) -> Any:
        film.scheduler = explaining(scheduler)(config)
        return film.scheduler

    found = replay({**workload, "config": config}, make, LESSON[:3], Filming)
    assert isinstance(found, Decisions)
    if compared:
        film.found = first_divergence(workload, found)
    return film.frames


def presets() -> dict[str, dict[str, Any]]:
    """The workloads that the simulator begins with: name -> workload."""
    recorded = {
        "R2: a victim that was scheduled already": "guided-101201",
        "R4, R5: hits, and a pool that is too small": "prefix_tight-0061",
        "R7: a hit on KV that nobody computed": "uncomputed_hit-w_bug",
    }
    return {
        "the running example": {**RUNNING_EXAMPLE, "name": "the running example"},
        **{words: find_trace(name) for words, name in recorded.items()},
    }


def describe(frame: Frame) -> str:
    """The picture in a sentence, for a screen reader."""
    return (
        f"{frame.film.title}. Step {frame.step}: {len(frame.members)} running, {len(frame.waiting)} waiting, "
        f"{frame.tokens} tokens computed. {_verdict(frame)}"
    )


def _verdict(frame: Frame) -> str:
    """Ours beside vLLM's, up to this step."""
    film = frame.film
    if not film.compared:
        return "Not compared: nobody recorded vLLM's decisions on this."
    if film.found is None or (film.found.step is not None and film.found.step > frame.step):
        return "So far every decision is vLLM's."
    if film.found.step is None:
        return f"Other outputs than vLLM's: {film.found.what}."
    if film.found.step < frame.step:
        return f"It departed from vLLM's decisions in step {film.found.step}."
    rule, found = film.found.rule.partition(" (")[0], film.found
    return f"Departs from vLLM here, rule {rule}: {found.what}, theirs {found.theirs}, ours {found.ours}."


def svg(frame: Frame, selected: str | None = None, on_click: str = "", key: str = "") -> str:
    """One step as an SVG of 900 pixels' width.

    selected: id of the request whose sentences are shown; all of them if None. on_click: JavaScript that a click on a
    request runs, with its id in `this.dataset.id`. key: keeps the ids of two pictures on one page apart.
    """
    pen = Pen(key)
    y = _heading(pen, frame)
    y = _queues(pen, frame, selected, on_click, y)
    y = _budget(pen, frame, y)
    y = _pool(pen, frame, selected, y)
    y = _sentences(pen, frame, selected, y)
    return card(pen, y, describe(frame), key)


def _colour(frame: Frame, request_id: str) -> str:
    return TINTS[frame.film.ids.index(request_id) % len(TINTS)]


def _heading(pen: Pen, frame: Frame) -> float:
    config, film = frame.film.scheduler.config, frame.film
    pen.text(MARGIN, 28, _fit(film.title, 560, 17), 17, more="font-weight='700'")
    where = f"step {frame.step:,} · {frame.index + 1:,} of {len(film.frames):,}"
    pen.text(WIDTH - MARGIN, 28, where, 14, INK, "text-anchor='end' font-weight='600'")
    cut = f" · threshold {config.long_prefill_token_threshold}" if config.long_prefill_token_threshold else ""
    kept = f" · watermark {film.scheduler.watermark_blocks} blocks" if film.scheduler.watermark_blocks else ""
    limits = (
        f"{config.policy} · budget {config.max_num_batched_tokens:,} · {config.max_num_seqs:,} seats · {config.num_blocks:,} "
        f"blocks of {config.block_size}{cut}{kept} · {'prefix cache' if config.prefix_caching else 'no prefix cache'} · "
        f"admission {config.admission}"
    )
    pen.text(MARGIN, 46, limits, 12, SOFT)
    verdict = _verdict(frame)
    bad = film.compared and not verdict.startswith("So far")
    pen.text(MARGIN, 64, _fit(verdict, INNER), 12, BLAME if bad else SOFT, "class='verdict'")
    return 76


def _queues(pen: Pen, frame: Frame, selected: str | None, on_click: str, top: float) -> float:
    """Waiting on the left, each with its reason; running on the right."""
    film = frame.film
    rows = min(max((max(len(one.waiting), len(one.members)) for one in film.frames), default=0), 9)
    rows = max(rows, 3)
    left, right, split = MARGIN, MARGIN + 330, 314
    click = _clickable(on_click)
    pen.text(left, top + 14, f"Waiting {len(frame.waiting):,}", 14, more="font-weight='600'")
    seats = f"Running {len(frame.members):,} of {film.scheduler.config.max_num_seqs:,} seats"
    pen.text(right, top + 14, seats, 14, more="font-weight='600'")
    keys = (("stored", STORED), ("hit", HIT), ("this step", DECODE), ("to come", EMPTY))
    _key(pen, WIDTH - MARGIN, top + 14, keys)
    top += 22
    waits = (entry for entry in frame.told if " waits: " in entry.text)
    reasons = {entry.ids[0]: entry.text.partition(" waits: ")[2].partition(" (")[0] for entry in waits}
    evicted = frame.entry.get("pre", [])
    for column, x, w, ids in (
        ("waiting", left, split, frame.waiting),
        ("running", right, WIDTH - MARGIN - right, [member.id for member in frame.members]),
    ):
        for i, request_id in enumerate(ids[:rows]):
            y = top + i * ROW
            picked = request_id == selected
            edge = f"stroke='{BLAME}' stroke-width='2'" if picked else f"stroke='{LINE}'"
            pen.parts.append(f"<g class='{column}' data-id='{escape(request_id, quote=True)}' {click}>")
            pen.rect(x, y + 1, w, ROW - 3, WARM if picked else CARD, f"rx='4' {edge}")
            pen.rect(x + 5, y + 6, 9, 9, _colour(frame, request_id), "rx='2'")
            pen.text(x + 19, y + 15, _fit(request_id, 44), 12, more="font-weight='600'")
            if column == "waiting":
                words = "evicted in this step" if request_id in evicted else reasons.get(request_id, "")
                pen.text(x + 58, y + 15, _fit(words, w - 62, 11.5), 11.5, BLAME if request_id in evicted else INK)
            else:
                _progress(pen, frame.members[i], x, y, w)
            pen.parts.append("</g>")
        if len(ids) > rows:
            pen.text(x + 4, top + rows * ROW + 13, f"+ {len(ids) - rows:,} more", 12, SOFT)
        if not ids:
            pen.text(x + 4, top + 15, "nobody waits" if column == "waiting" else "nobody runs", 12, SOFT)
    return top + rows * ROW + 24


def _progress(pen: Pen, member: Member, x: float, y: float, w: float) -> None:
    """All that a request can become: stored, found in the cache, this step's tokens, what is still to come."""
    bar_x, bar = x + 58, w - 58 - 170
    scale = bar / member.total
    pen.rect(bar_x, y + 5, bar, 11, EMPTY, "rx='2'", f"{member.id}: {member.before + member.n:,} of {member.known:,} known")
    pen.rect(bar_x, y + 5, member.before * scale, 11, STORED)
    pen.rect(bar_x, y + 5, member.hit * scale, 11, HIT)
    pen.rect(bar_x + member.before * scale, y + 5, max(member.n * scale, 2.0 if member.n else 0), 11, KINDS[member.kind])
    edge = bar_x + member.prompt * scale
    pen.line(edge, y + 3, edge, y + 18, INK, "stroke-width='1'")
    words = f"+{member.n} -> {member.before + member.n:,} of {member.known:,}, {len(member.blocks):,} blocks"
    pen.text(x + w - 4, y + 15, words, 11, SOFT, "text-anchor='end'")


def _budget(pen: Pen, frame: Frame, y: float) -> float:
    budget = frame.film.scheduler.config.max_num_batched_tokens
    total = frame.tokens
    pen.text(MARGIN, y + 14, "This step", 14, more="font-weight='600'")
    pen.text(MARGIN + 78, y + 14, f"{total:,} of {budget:,} tokens, {budget - total:,} left", 12, SOFT)
    _key(pen, WIDTH - MARGIN, y + 14, tuple(KINDS.items()))
    y += 22
    pen.hatched(MARGIN, y, INNER, 22, f"{budget - total:,} tokens of the budget are not used")
    x, scale = float(MARGIN), INNER / max(budget, total)
    for member in frame.members:
        w = member.n * scale
        edge = f"stroke='{CARD}' stroke-width='0.8'"
        pen.rect(x, y, w, 22, KINDS[member.kind], edge, f"{member.id}: {member.n:,} tokens, {member.kind}")
        if w >= 7.5 * len(member.id):
            ink = CARD if member.kind == "decode" else INK
            label = f"{member.id} {member.n}" if w >= 7.5 * len(f"{member.id} {member.n}") else member.id
            pen.text(x + w / 2, y + 15, label, 12, ink, "text-anchor='middle' font-weight='600'")
        x += w
    pen.rect(MARGIN, y, INNER, 22, "none", f"stroke='{SOFT}'")
    return y + 34


def _pool(pen: Pen, frame: Frame, selected: str | None, y: float) -> float:
    """Every block: its owner's colour; several owners in stripes; hatched if it is free and still cached; crossed out if it has
    a name and its KV was never computed.
    """
    n = len(frame.owners)
    free = sum(not owners for owners in frame.owners)
    kept = sum(not owners and named for owners, named in zip(frame.owners, frame.cached))
    shared = sum(len(owners) > 1 for owners in frame.owners)
    pen.text(MARGIN, y + 14, "KV blocks", 14, more="font-weight='600'")
    words = f"{n - free:,} of {n:,} used, {free:,} free, {kept:,} of them cached (hatched); {shared:,} shared"
    if frame.unwritten:
        words += f"; {len(frame.unwritten):,} named, but never computed (crossed out)"
    pen.text(MARGIN + 82, y + 14, words, 12, SOFT)
    y += 22
    cell = next((size for size in (30, 24, 18, 14, 10, 7) if -(-n // int(INNER // size)) * size <= 90), 5)
    columns = int(INNER // cell)
    for block, owners in enumerate(frame.owners):
        x, top = MARGIN + block % columns * cell, y + block // columns * cell
        said = ", ".join(owners) or ("free, cached" if frame.cached[block] else "free")
        edge = f"stroke='{BLAME}' stroke-width='2'" if selected in owners else f"stroke='{LINE}'"
        pen.rect(x + 0.5, top + 0.5, cell - 2, cell - 2, CARD, f"rx='2' {edge}", f"block {block}: {said}")
        if not owners and frame.cached[block]:
            pen.hatched(x + 1.5, top + 1.5, cell - 4, cell - 4, f"block {block}: {said}")
        for i, owner in enumerate(owners):
            h = (cell - 4) / len(owners)
            pen.rect(x + 1.5, top + 1.5 + i * h, cell - 4, h, _colour(frame, owner), "", f"block {block}: {said}")
        if block in frame.unwritten:
            pen.line(x + 1.5, top + 1.5, x + cell - 2.5, top + cell - 2.5, BLAME, "stroke-width='2'")
            pen.line(x + 1.5, top + cell - 2.5, x + cell - 2.5, top + 1.5, BLAME, "stroke-width='2'")
        if len(owners) == 1 and cell >= 7.2 * len(owners[0]) + 4:
            pen.text(x + cell / 2, top + cell / 2 + 4, owners[0], 11, INK, "text-anchor='middle'")
    return y + -(-n // columns) * cell + 12


def _sentences(pen: Pen, frame: Frame, selected: str | None, y: float) -> float:
    """What the scheduler says of this step: the words of --explain. As high in every frame of a film, so that nothing jumps."""
    told = [entry for entry in narrowed(frame.told, [selected] if selected else []) if entry.ids]
    most = max((sum(bool(entry.ids) for entry in one.told) for one in frame.film.frames), default=1)
    rows = min(max(most, 3), SENTENCES)
    what = f"What happened to {selected}, and why" if selected else "What happened, and why"
    pen.text(MARGIN, y + 14, what, 14, more="font-weight='600'")
    y += 22
    pen.rect(MARGIN, y, INNER, rows * 17 + 10, WARM, "rx='6'")
    lines = [line for entry in told for line in _wrapped(str(entry), entry.ids[0])] or [("nothing in this step", "")]
    for i, (line, owner) in enumerate(lines[:rows]):
        if i == rows - 1 and len(lines) > rows:
            line, owner = f"… and {len(lines) - rows + 1} lines more: choose a request", ""
        if owner:
            pen.rect(MARGIN + 8, y + 10 + i * 17, 8, 8, _colour(frame, owner), "rx='2'")
        pen.text(MARGIN + 22, y + 18 + i * 17, line, 12, more="class='told'")
    return y + rows * 17 + 24


def _wrapped(text: str, owner: str, room: int = 130) -> list[tuple[str, str]]:
    """A sentence in lines; the first has its owner's mark."""
    lines: list[str] = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > room:
            lines.append("  ")
        lines[-1] += word + " "
    return [(line, "" if i else owner) for i, line in enumerate(lines)]

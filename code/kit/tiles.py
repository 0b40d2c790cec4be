"""Which program of s18's kernel computes which rows of a step, over which keys: recorded from the learner's kernel, and drawn.

The shape of the file: `Setup`, a step; `record`, which runs the kernel in Triton's interpreter and notes what it loads and stores;
`planned`, the same worked out by hand; `svg`, the picture, pure; `player`, the knobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from kit import gpu, reach
from kit.drawing import BLAME, CARD, DECODE, EMPTY, FONT, INK, LINE, MARGIN, PREFILL, SOFT, TINTS, WIDTH, Pen
from kit.programs import in_place_of_knobs, innermost

FIGURE = Path(__file__).resolve().parents[2] / "lessons" / "figures" / "s18_tiles.svg"
HEAD_DIM = 32


@dataclass(frozen=True)
class Setup:
    """A step: for each request what is stored before it, and its new tokens. queries, tile: smaller than on a GPU, to see something."""

    requests: tuple[tuple[str, int, int], ...] = (("A", 36, 1), ("B", 0, 6), ("C", 24, 9), ("D", 8, 1))
    block_size: int = 8
    group: int = 4
    queries: int = 4
    tile: int = 16
    window: int = 0

    @property
    def starts(self) -> list[int]:
        """query_start_loc."""
        return [sum(new for _, _, new in self.requests[:i]) for i in range(len(self.requests) + 1)]

    @property
    def lengths(self) -> list[int]:
        return [stored + new for _, stored, new in self.requests]

    @property
    def owners(self) -> list[tuple[int, int]]:
        """For each row of the step its request and its position there."""
        return [(i, stored + j) for i, (_, stored, new) in enumerate(self.requests) for j in range(new)]

    def sees(self, position: int) -> range:
        """The positions that a query at `position` attends to."""
        return range(max(0, position - self.window + 1) if self.window else 0, position + 1)


SETUPS = {
    "two decodes, a prompt, a chunk": Setup(),
    "a prompt of 30": Setup((("A", 0, 30),)),
    "its last 10 tokens, as a chunk": Setup((("A", 20, 10),)),
    "six decodes": Setup((("A", 36, 1), ("B", 3, 1), ("C", 17, 1), ("D", 8, 1), ("E", 30, 1), ("F", 15, 1))),
}


@dataclass(frozen=True)
class Program:
    """What one program has touched. rows: of the step, whose queries it loaded. tiles: the slots of each load of keys."""

    number: int
    rows: tuple[int, ...] = ()
    tiles: tuple[frozenset[int], ...] = ()
    stored: tuple[int, ...] = ()  # rows of the output

    @property
    def slots(self) -> set[int]:
        return {slot for tile in self.tiles for slot in tile}


@dataclass(frozen=True)
class Recorded:
    setup: Setup
    tables: tuple[tuple[int, ...], ...]  # the blocks of each request
    num_blocks: int
    programs: tuple[Program, ...]
    by_hand: bool = False

    def slots(self, request: int) -> list[int]:
        """Where the tokens of a request lie, in order."""
        size, table = self.setup.block_size, self.tables[request]
        return [table[p // size] * size + p % size for p in range(self.setup.lengths[request])]

    def keys(self, program: Program) -> list[int]:
        """The positions that a program reads, in the request of its first row; a slot that is not that request's is -1."""
        if not program.rows:
            return [-1] * len(program.slots)
        order = {slot: position for position, slot in enumerate(self.slots(self.setup.owners[program.rows[0]][0]))}
        return sorted(order.get(slot, -1) for slot in program.slots)

    def pairs(self, program: Program) -> tuple[int, int]:
        """(its queries times the keys that it reads, those of these pairs that a right mask leaves). `causal` is not asked."""
        keys = set(self.keys(program))
        seen = sum(len(keys & set(self.setup.sees(self.setup.owners[row][1]))) for row in program.rows)
        return len(program.rows) * len(keys), seen


def _batch(setup: Setup) -> Any:
    from kit.ragged import ragged

    counts = [new for _, _, new in setup.requests]
    options: dict[str, Any] = {"block_size": setup.block_size, "num_kv_heads": 1, "group": setup.group}
    return ragged(0, setup.lengths, counts, head_dim=HEAD_DIM, **options)


def _recorded(setup: Setup, batch: Any, programs: tuple[Program, ...], by_hand: bool = False) -> Recorded:
    rows = zip(batch.block_tables.tolist(), setup.lengths)
    owned = tuple(tuple(row[: -(-length // setup.block_size)]) for row, length in rows)
    return Recorded(setup, owned, len(batch.k_cache), programs, by_hand)


def record(s18: Any, setup: Setup) -> Recorded:
    """Run the lesson's kernel for a step in the interpreter; where there is none, what it should do, worked out by hand."""
    if not gpu.INTERPRETED:
        return planned(setup)
    batch = _batch(setup)
    (launch,) = gpu.launches(s18, s18.paged_attention, *batch.mixed, setup.window)
    rows = setup.group * setup.queries
    count = s18.num_tiles(len(batch.q), len(setup.requests), setup.queries)
    constants = {**launch.constants, "ROWS": max(rows, 16), "QUERIES": setup.queries, "TILE": setup.tile}
    out, loads, stores, tiles = launch.args[0], {}, {}, {}  # type: ignore[var-annotated]

    def within(tensor: Any, addresses: Any, width: int) -> list[int]:
        """Which rows of a tensor, `width` numbers each, are touched."""
        first = tensor.data_ptr()
        inside = addresses[(addresses >= first) & (addresses < first + 4 * tensor.numel())]
        return sorted({(int(address) - first) // (4 * width) for address in inside})

    def note(program: tuple[int, int, int], kind: str, addresses: Any) -> None:
        number = int(program[0])
        for tensor, wanted, found in ((batch.q, "load", loads), (out, "store", stores)):
            touched = within(tensor, addresses, setup.group * HEAD_DIM) if kind == wanted else []
            found.setdefault(number, []).extend(touched)
        if kind == "load" and (slots := within(batch.k_cache, addresses, HEAD_DIM)):
            tiles.setdefault(number, []).append(frozenset(slots))

    with reach.observed(note):
        replace(launch, grid=(count, 1), constants=constants).again()
    programs = tuple(
        Program(n, tuple(loads.get(n, ())), tuple(tiles.get(n, ())), tuple(stores.get(n, ()))) for n in range(count)
    )
    return _recorded(setup, batch, programs)


def planned(setup: Setup) -> Recorded:
    """What `record` should find, from the arithmetic of the lesson."""
    batch = _batch(setup)
    whole = _recorded(setup, batch, (), by_hand=True)
    return replace(whole, programs=tuple(_by_hand(setup, whole)))


def _by_hand(setup: Setup, whole: Recorded) -> Iterator[Program]:
    starts, queries = setup.starts, setup.queries
    begin = [start // queries + i for i, start in enumerate(starts[:-1])]
    for number in range(starts[-1] // queries + len(begin)):
        i = max(i for i, first in enumerate(begin) if first <= number)
        _, stored, new = setup.requests[i]
        first = (number - begin[i]) * queries
        rows = tuple(starts[i] + j for j in range(first, min(first + queries, new)))
        if not rows:
            yield Program(number)
            continue
        end = stored + first + len(rows)
        oldest = setup.sees(stored + first).start
        slots, tile = whole.slots(i), setup.tile
        at = range(oldest // tile * tile, end, tile)
        yield Program(number, rows, tuple(frozenset(slots[a : min(a + tile, end)]) for a in at), rows)


# The picture

HIGH, LEFT = 15, 150


def svg(recorded: Recorded, number: int) -> str:
    """The step as an SVG of 900 pixels' width: a line a row, a cell a key; program `number` has the thick edge."""
    pen = Pen("tiles")
    number = max(0, min(number, len(recorded.programs) - 1))
    chosen = recorded.programs[number]
    pen.text(MARGIN, 28, f"Program {number} of {len(recorded.programs)}", 17, more="font-weight='700'")
    pen.text(WIDTH - MARGIN, 28, _words(recorded, chosen), 13, SOFT, "text-anchor='end'")
    y = _rows(pen, recorded, chosen, 66.0)
    y = _pool(pen, recorded, chosen, y + 40)
    label = escape(describe(recorded, number), quote=True)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {y:.0f}' width='{WIDTH}' height='{y:.0f}' role='img' "
        f"style='max-width:100%;height:auto' aria-label='{label}' {FONT}><title>{label}</title>"
        f"<rect x='0.5' y='0.5' width='{WIDTH - 1}' height='{y - 1:.0f}' rx='10' fill='{CARD}' stroke='{LINE}'/>"
        + "".join(pen.parts)
        + "</svg>"
    )


def _words(recorded: Recorded, program: Program) -> str:
    if not program.rows:
        return "a number that no tile has: it returns at once"
    pairs, seen = recorded.pairs(program)
    plural = "" if len(program.tiles) == 1 else "s"
    return f"{len(program.tiles)} tile{plural} of keys · {pairs} pairs computed, {seen} seen"


def describe(recorded: Recorded, number: int) -> str:
    """The picture in a sentence, for a screen reader."""
    program, setup = recorded.programs[number], recorded.setup
    if not program.rows:
        return f"Program {number} has no work"
    i, first = setup.owners[program.rows[0]]
    keys, last = recorded.keys(program), setup.owners[program.rows[-1]][1]
    over = f"over its keys {keys[0]} to {keys[-1]}" if keys else "and reads no key"
    return f"Program {number} computes positions {first} to {last} of request {setup.requests[i][0]} {over}"


def _rows(pen: Pen, recorded: Recorded, chosen: Program, y: float) -> float:
    setup = recorded.setup
    longest = max(setup.lengths)
    cell = min(15.0, (WIDTH - MARGIN - LEFT - 40) / longest)
    pen.text(MARGIN, y - 8, "program, row, token", 12, SOFT)
    keys = (("prefill: seen", PREFILL), ("decode: seen", DECODE), ("read, and masked", "#9aa5b1"), ("not read", EMPTY))
    for i, (words, fill) in enumerate(keys):
        pen.rect(LEFT + i * 150, y - 18, 12, 12, fill, f"stroke='{LINE}'")
        pen.text(LEFT + 17 + i * 150, y - 8, words, 12, SOFT)
    by_row = {row: program for program in recorded.programs for row in program.rows}
    reads = {program.number: set(recorded.keys(program)) for program in recorded.programs}
    edges: dict[int, list[float]] = {}
    before = -1
    for row, (i, position) in enumerate(setup.owners):
        name, _, new = setup.requests[i]
        y += 8 if i != before and before >= 0 else 0
        before = i
        program = by_row.get(row)
        tint = DECODE if new == 1 else PREFILL
        for key in range(setup.lengths[i]):
            fill = EMPTY
            if program is not None and key in reads[program.number]:
                fill = tint if key in setup.sees(position) else "#9aa5b1"
            pen.rect(LEFT + key * cell, y, cell, HIGH, fill, f"stroke='{CARD}' stroke-width='0.7'")
        for edge in range(setup.tile, setup.lengths[i], setup.tile):
            pen.line(LEFT + edge * cell, y, LEFT + edge * cell, y + HIGH, INK)
        owner = f"{program.number}" if program is not None else "none"
        pen.text(MARGIN, y + 12, owner, 12, INK if program is not None else BLAME, "font-weight='700'")
        pen.text(MARGIN + 34, y + 12, f"{row}", 12, SOFT)
        pen.text(MARGIN + 64, y + 12, f"{name} {position}", 12)
        if program is not None:
            edges.setdefault(program.number, [y, y])[1] = y + HIGH
        y += HIGH
    if chosen.number in edges:
        top, bottom = edges[chosen.number]
        wide = LEFT + longest * cell - MARGIN + 4
        pen.rect(MARGIN - 6, top - 2, wide + 4, bottom - top + 4, "none", f"stroke='{BLAME}' stroke-width='2.5' rx='3'")
    idle = [program.number for program in recorded.programs if not program.rows]
    if idle:
        pen.text(LEFT, y + 17, f"without work: {', '.join(map(str, idle))}", 12, SOFT)
    return y + (20 if idle else 4)


def _pool(pen: Pen, recorded: Recorded, chosen: Program, y: float) -> float:
    setup = recorded.setup
    size = setup.block_size
    owner = {block: i for i, table in enumerate(recorded.tables) for block in table}
    wide = min(64.0, (WIDTH - 2 * MARGIN) / recorded.num_blocks - 5)
    pen.text(MARGIN, y - 8, "the pool: what this program reads of it", 12, SOFT)
    stored = {slot for i in range(len(setup.requests)) for slot in recorded.slots(i)}
    for block in range(recorded.num_blocks):
        x = MARGIN + block * (wide + 5)
        tint = TINTS[owner[block] % len(TINTS)] if block in owner else EMPTY
        for place in range(size):
            slot = block * size + place
            fill, more = EMPTY, ""
            if slot in chosen.slots:
                fill = tint if slot in stored else BLAME
            elif slot in stored:
                fill, more = tint, "fill-opacity='0.3'"
            pen.rect(x + place * wide / size, y, wide / size, 18, fill, f"stroke='{CARD}' stroke-width='0.5' {more}")
        pen.rect(x, y, wide, 18, "none", f"stroke='{INK if block in owner else LINE}'")
        words = f"{block} {setup.requests[owner[block]][0]}" if block in owner else f"{block}"
        pen.text(x + wide / 2, y + 32, words, 11, SOFT, "text-anchor='middle'")
    return y + 44


def figure(s18: Any) -> str:
    """The picture of the lesson: the second tile of queries of a chunk."""
    return svg(record(s18, Setup()), 4)


def player(s18: Any) -> Any:
    """The recorded step with knobs; without ipywidgets or the interpreter the picture of the lesson."""
    still = in_place_of_knobs(FIGURE)
    if still is not None:
        return still
    import ipywidgets as w

    step = w.Dropdown(options=list(SETUPS), description="step")
    knobs = {
        "queries": w.SelectionSlider(options=(4, 8, 16), value=4, description="queries", continuous_update=False),
        "tile": w.SelectionSlider(options=(8, 16, 32), value=16, description="tile", continuous_update=False),
        "window": w.SelectionSlider(options=(0, 6, 12, 20), value=0, description="window", continuous_update=False),
    }
    number, play = w.IntSlider(0, min=0, max=1, description="program"), w.Play(0, min=0, max=1, interval=600)
    w.jslink((play, "value"), (number, "value"))
    picture, state = w.HTML(), {}  # type: ignore[var-annotated]

    def draw(_: Any = None) -> None:
        if "recorded" in state:
            picture.value = svg(state["recorded"], number.value)

    def run(_: Any = None) -> None:
        state.clear()
        try:
            state["recorded"] = record(s18, replace(SETUPS[step.value], **{n: knob.value for n, knob in knobs.items()}))
        except Exception as error:  # a kernel that is being written may raise anything
            picture.value = f"<div class='kit-error' style='padding:1em;color:{BLAME}'>{escape(innermost(error))}</div>"
            return
        number.max = play.max = len(state["recorded"].programs) - 1
        draw()

    for knob in (step, *knobs.values()):
        knob.observe(run, "value")
    number.observe(draw, "value")
    run()
    box = w.VBox(
        [w.HBox([step, knobs["window"]]), w.HBox([knobs["queries"], knobs["tile"]]), w.HBox([play, number]), picture]
    )
    box.add_class("kit-simulator")
    return box

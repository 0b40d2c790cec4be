"""Which programs of s17's kernel read which blocks: recorded from the learner's kernel, drawn step by step.

The shape of the file: `Setup`; `record`, which runs the kernel in Triton's interpreter and notes where it loads keys from;
`svg`, the picture of one step, pure; `player`, the knobs. Drawing needs nothing but what was recorded.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from kit import gpu, reach
from kit.drawing import BLAME, CARD, DECODE, EMPTY, FONT, INK, LINE, MARGIN, SOFT, TINTS, WIDTH, Pen

FIGURE = Path(__file__).resolve().parents[2] / "lessons" / "figures" / "s17_programs.svg"
HEAD_DIM = 64

Program = tuple[int, int, int]  # request, KV head, split


@dataclass(frozen=True)
class Setup:
    """A step of decodes, and how the kernel cuts it. tile: fewer tokens than on a GPU, so that there is something to see."""

    lengths: tuple[int, ...] = (37, 70, 20)
    block_size: int = 16
    kv_heads: int = 2
    group: int = 4
    tile: int = 16
    splits: int = 1
    window: int = 0


@dataclass(frozen=True)
class Tile:
    """One load of keys: by which program, and the slots, each with the KV head whose key was read."""

    program: Program
    keys: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Recorded:
    """All that a kernel has read of the keys, in the interpreter's order; a GPU runs the programs beside each other."""

    setup: Setup
    num_blocks: int
    tables: tuple[tuple[int, ...], ...]  # the blocks of each request
    tiles: tuple[Tile, ...]

    @property
    def programs(self) -> list[Program]:
        s = self.setup
        return [(r, h, p) for r in range(len(s.lengths)) for h in range(s.kv_heads) for p in range(s.splits)]

    def of(self, program: Program) -> list[Tile]:
        return [tile for tile in self.tiles if tile.program == program]

    def slots(self, request: int) -> list[int]:
        """Where the tokens of a request lie, in order."""
        size, table = self.setup.block_size, self.tables[request]
        return [table[p // size] * size + p % size for p in range(self.setup.lengths[request])]

    def mine(self, program: Program) -> set[tuple[int, int]]:
        """What a program may read: keys of its request and KV head that the newest token sees."""
        slots, window = self.slots(program[0]), self.setup.window
        return {(slot, program[1]) for slot in (slots[-window:] if window else slots)}

    def blocks_of(self, program: Program) -> list[int]:
        """The blocks that a program reads, in its order; within a load in the order of the request."""
        found: dict[int, None] = {}
        order = {slot: i for i, slot in enumerate(self.slots(program[0]))}
        for tile in self.of(program):
            for slot, _ in sorted(tile.keys, key=lambda key: (order.get(key[0], len(order)), key)):
                found[slot // self.setup.block_size] = None
        return list(found)

    def tokens_of(self, program: Program) -> int:
        return sum(len(tile.keys) for tile in self.of(program))

    @property
    def longest(self) -> int:
        """Tiles of the program that has most of them."""
        return max((len(self.of(program)) for program in self.programs), default=0)

    @property
    def strays(self) -> int:
        """Keys read that are not the program's to read."""
        return sum(len(tile.keys - self.mine(tile.program)) for tile in self.tiles)


def record(s17: Any, setup: Setup) -> Recorded:
    """Run the lesson's kernels for a batch in the interpreter, and note from where each program loads keys."""
    from kit.ragged import ragged

    batch = ragged(
        0, setup.lengths, block_size=setup.block_size, num_kv_heads=setup.kv_heads, group=setup.group, head_dim=HEAD_DIM
    )
    first, behind = batch.k_cache.data_ptr(), batch.k_cache.data_ptr() + 4 * batch.k_cache.numel()
    found: list[Tile] = []

    def note(program: Program, kind: str, addresses: Any) -> None:
        inside = addresses[(addresses >= first) & (addresses < behind)]
        if kind == "load" and len(inside):
            rows = {(int(address) - first) // (4 * HEAD_DIM) for address in inside}
            keys = frozenset((row // setup.kv_heads, row % setup.kv_heads) for row in rows)
            found.append(Tile((int(program[0]), int(program[1]), int(program[2])), keys))

    for launch in gpu.launches(s17, s17.paged_decode, *batch.decode, setup.window, setup.splits):
        if "TILE" in launch.constants:
            launch.constants["TILE"] = setup.tile
            with reach.observed(note):
                launch.again()
    tables = batch.block_tables.tolist()
    owned = [tuple(row[: -(-length // setup.block_size)]) for row, length in zip(tables, setup.lengths)]
    return Recorded(setup, len(batch.k_cache), tuple(owned), tuple(found))


# The picture

CELL, HIGH, GAP = 6, 13, 12


def svg(recorded: Recorded, step: int) -> str:
    """One load of keys (steps count from 1) as an SVG of 900 pixels' width: the programs, the pool, and the request's positions."""
    setup, pen = recorded.setup, Pen("programs")
    step = max(1, min(step, len(recorded.tiles)))
    past, now = recorded.tiles[: step - 1], recorded.tiles[step - 1]
    request, head, split = now.program
    title = f"Request {request}, KV head {head}" + (f", split {split} of {setup.splits}" if setup.splits > 1 else "")
    pen.text(MARGIN, 28, title, 17, more="font-weight='700'")
    words = f"load {step} of {len(recorded.tiles)}: {len(now.keys)} keys · tiles of {setup.tile} · {_window(setup)}"
    pen.text(WIDTH - MARGIN, 28, words, 13, SOFT, "text-anchor='end'")
    y = _programs(pen, recorded, past, now, 56.0)
    y = _pool(pen, recorded, past, now, y + 34)
    y = _positions(pen, recorded, now, y + 34)
    label = escape(describe(recorded, step), quote=True)
    height = y + 12
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' height='{height:.0f}' role='img' "
        f"style='max-width:100%;height:auto' aria-label='{label}' {FONT}><title>{label}</title>"
        f"<rect x='0.5' y='0.5' width='{WIDTH - 1}' height='{height - 1:.0f}' rx='10' fill='{CARD}' stroke='{LINE}'/>"
        + "".join(pen.parts)
        + "</svg>"
    )


def describe(recorded: Recorded, step: int) -> str:
    """The picture in a sentence, for a screen reader."""
    now = recorded.tiles[step - 1]
    blocks = sorted({slot // recorded.setup.block_size for slot, _ in now.keys})
    stray = len(now.keys - recorded.mine(now.program))
    return (
        f"Program of request {now.program[0]}, KV head {now.program[1]}, split {now.program[2]} reads {len(now.keys)} keys in blocks "
        f"{', '.join(map(str, blocks))}" + (f"; {stray} of them are not its own" if stray else "")
    )


def _window(setup: Setup) -> str:
    return f"window of {setup.window}" if setup.window else "no window"


def _programs(pen: Pen, recorded: Recorded, past: Any, now: Tile, y: float) -> float:
    """A box a program, filled by the share of its loads that are done; the one at work has a thick edge."""
    pen.text(MARGIN, y, f"{len(recorded.programs)} programs", 12, SOFT)
    wide = min(120.0, (WIDTH - 2 * MARGIN - 100) / len(recorded.programs) - 4)
    for i, program in enumerate(recorded.programs):
        x = MARGIN + 100 + i * (wide + 4)
        loads, done = len(recorded.of(program)), sum(tile.program == program for tile in past) + (now.program == program)
        pen.rect(x, y - 14, wide, 20, EMPTY)
        pen.rect(x, y - 14, wide * done / loads if loads else 0, 20, TINTS[program[0] % len(TINTS)])
        edge = f"stroke='{DECODE}' stroke-width='3'" if program == now.program else f"stroke='{LINE}'"
        pen.rect(x, y - 14, wide, 20, "none", edge, f"request, KV head, split {program}: {done} of {loads} loads")
        if wide >= 34:
            pen.text(
                x + wide / 2,
                y,
                " ".join(map(str, program[: 2 + (recorded.setup.splits > 1)])),
                11,
                INK,
                "text-anchor='middle'",
            )
    return y + 6


def _pool(pen: Pen, recorded: Recorded, past: Any, now: Tile, y: float) -> float:
    """The blocks where they lie: a column a slot, a row a KV head. Pale: stored. Full: read. Blue: being read. Red: a stray."""
    setup = recorded.setup
    size, wide = setup.block_size, setup.block_size * CELL
    owner = {block: i for i, table in enumerate(recorded.tables) for block in table}
    stored = {slot for i in range(len(setup.lengths)) for slot in recorded.slots(i)}
    read = {key for tile in past for key in tile.keys}
    strays = {key for tile in (*past, now) for key in tile.keys - recorded.mine(tile.program)}
    a_row = max(1, int((WIDTH - 2 * MARGIN + GAP) // (wide + GAP)))
    high = setup.kv_heads * HIGH
    pen.text(MARGIN, y - 4, "the pool: a column a slot, a row a KV head", 12, SOFT)
    keys = (
        (TINTS[0], "0.3", "stored"),
        (TINTS[0], "1", "read already"),
        (DECODE, "1", "read now"),
        (BLAME, "1", "not this program's"),
    )
    for i, (fill, opacity, words) in enumerate(keys):
        pen.rect(430 + i * 108, y - 14, 12, 12, fill, f"fill-opacity='{opacity}' stroke='{LINE}'")
        pen.text(446 + i * 108, y - 4, words, 11, SOFT)
    for block in range(recorded.num_blocks):
        x, top = MARGIN + block % a_row * (wide + GAP), y + 6 + block // a_row * (high + 26)
        tint = TINTS[owner[block] % len(TINTS)] if block in owner else EMPTY
        for place in range(size):
            for head in range(setup.kv_heads):
                key = (block * size + place, head)
                more = f"stroke='{CARD}' stroke-width='0.6'"
                fill = tint if key in read else EMPTY
                if key in now.keys:
                    fill = DECODE
                if key in strays:
                    fill = BLAME
                elif fill == EMPTY and key[0] in stored:
                    fill, more = tint, f"{more} fill-opacity='0.3'"
                pen.rect(x + place * CELL, top + head * HIGH, CELL, HIGH, fill, more)
        pen.rect(x, top, wide, high, "none", f"stroke='{INK if block in owner else LINE}'")
        words = f"{block}: request {owner[block]}" if block in owner else f"{block}: nobody's"
        pen.text(x + wide / 2, top + high + 14, words if wide > 70 else f"{block}", 11, SOFT, "text-anchor='middle'")
    return y + 6 + -(-recorded.num_blocks // a_row) * (high + 26)


def _positions(pen: Pen, recorded: Recorded, now: Tile, y: float) -> float:
    """The request's tokens in its own order, tile by tile, with the block that each lies in; what no tile has is blank."""
    setup, request = recorded.setup, now.program[0]
    slots, size = recorded.slots(request), setup.block_size
    total = -(-len(slots) // setup.tile) * setup.tile
    cell = min(10.0, (WIDTH - 2 * MARGIN) / max(total, 1))
    at = {slot: position for position, slot in enumerate(slots)}
    here = {at[slot] for slot, _ in now.keys if slot in at}
    pen.text(
        MARGIN,
        y - 4,
        f"request {request} in its own order: {len(slots)} tokens, block table {list(recorded.tables[request])}",
        12,
        SOFT,
    )
    for position in range(total):
        x = MARGIN + position * cell
        fill = DECODE if position in here else TINTS[request % len(TINTS)] if position < len(slots) else CARD
        seen = position < len(slots) and (not setup.window or position >= len(slots) - setup.window)
        more = f"stroke='{CARD}' stroke-width='0.6'" if position < len(slots) else f"stroke='{LINE}' stroke-width='0.6'"
        pen.rect(x, y + 4, cell, 18, fill, more + ("" if seen or position in here else " fill-opacity='0.3'"))
    for position in range(0, total, setup.tile):
        pen.rect(MARGIN + position * cell, y + 4, setup.tile * cell, 18, "none", f"stroke='{INK}'")
    for i, block in enumerate(recorded.tables[request]):
        left, right = i * size, min((i + 1) * size, len(slots))
        pen.text(MARGIN + (left + right) / 2 * cell, y + 37, f"{block}", 11, SOFT, "text-anchor='middle'")
    return y + 44


def figure(s17: Any) -> str:
    """The picture of the lesson: a tile that spans two blocks, the second of its program."""
    recorded = record(s17, replace(Setup(), tile=32, splits=2))
    return svg(recorded, [i for i, tile in enumerate(recorded.tiles, 1) if tile.program == (1, 1, 0)][1])


def in_place_of_knobs(figure: Path) -> Any:
    """None where a kernel can be recorded and there are knobs; else the lesson's picture, and a line that says why."""
    why = gpu.lacking() or ("" if gpu.INTERPRETED else "needs Triton's interpreter: TRITON_INTERPRET=1")
    if not why and importlib.util.find_spec("ipywidgets") is None:
        why = "needs ipywidgets (python3 course.py lab installs it)"
    if not why:
        return None
    from IPython.display import SVG

    print(f"Recording your kernel {why}. Here is a picture of the lesson's.")
    return SVG(figure.read_text("utf-8"))


def player(s17: Any) -> Any:
    """The recorded programs with knobs; without Triton's interpreter or ipywidgets the picture of the lesson."""
    still = in_place_of_knobs(FIGURE)
    if still is not None:
        return still
    import ipywidgets as w

    narrow = {"continuous_update": False}
    knobs = {
        "splits": w.IntSlider(1, min=1, max=4, description="splits", **narrow),
        "block_size": w.SelectionSlider(options=(4, 8, 16, 32), value=16, description="block size", **narrow),
        "tile": w.SelectionSlider(options=(8, 16, 32, 64), value=16, description="tile", **narrow),
        "window": w.SelectionSlider(options=(0, 8, 16, 20, 40), value=0, description="window", **narrow),
    }
    step, play, picture = w.IntSlider(1, min=1, max=2, description="load"), w.Play(1, min=1, max=2, interval=500), w.HTML()
    w.jslink((play, "value"), (step, "value"))
    state: dict[str, Any] = {}

    def draw(_: Any = None) -> None:
        if "recorded" in state:
            picture.value = svg(state["recorded"], step.value)

    def run(_: Any = None) -> None:
        state.clear()
        try:
            recorded = record(s17, replace(Setup(), **{name: knob.value for name, knob in knobs.items()}))
        except Exception as error:  # a kernel that is being written may raise anything
            picture.value = f"<div class='kit-error' style='padding:1em;color:{BLAME}'>{escape(innermost(error))}</div>"
            return
        if not recorded.tiles:
            picture.value = "<div class='kit-error' style='padding:1em'>Your kernel has loaded no keys.</div>"
            return
        state["recorded"] = recorded
        step.max = play.max = len(recorded.tiles)
        draw()

    for knob in knobs.values():
        knob.observe(run, "value")
    step.observe(draw, "value")
    run()
    rows = list(knobs.values())
    box = w.VBox([w.HBox(rows[:2]), w.HBox(rows[2:]), w.HBox([play, step]), picture])
    box.add_class("kit-simulator")
    return box


def innermost(error: BaseException) -> str:
    """What went wrong inside the kernel, out of the interpreter's wrappers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"

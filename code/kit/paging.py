"""What s05 shows when it runs: a block table, the moment a block is opened, the size of a block, what a bad pool does.

The shape of the file: the story that the pictures tell, the main job section by section, the memory map as an SVG.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from kit import options, traces
from kit.drawing import CARD, EMPTY, FONT, INK, LINE, MARGIN, SOFT, TINTS, WIDTH, Pen, Point
from kit.errors import BlockError, NoFreeBlocks
from kit.report import heading, table
from kit.request import Request

BLOCKS, SIZE = 8, 4  # of the story
NAMES = "ABC"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
KV_BYTES = 131_072  # of one token of a Llama-3-8B: 2 * 32 layers * 8 KV heads * 128 * 2 bytes
ENTRY_BYTES = 4  # of one entry of a block table, an int32


# The story.


@dataclass(frozen=True)
class Frame:
    """The pool after one event: who holds which block, and how many tokens each request has stored."""

    event: str
    block_size: int
    num_blocks: int
    tables: dict[str, tuple[int, ...]]
    stored: dict[str, int]

    @property
    def owners(self) -> list[str]:
        """For each physical block its owner, "" for a free one."""
        names = [""] * self.num_blocks
        for name, blocks in self.tables.items():
            for block in blocks:
                names[block] = name
        return names

    @property
    def num_free(self) -> int:
        return self.owners.count("")


def story(pool_class: Any, num_blocks: int = BLOCKS, block_size: int = SIZE) -> list[Frame]:
    """A and B grow in turn, B ends, C takes what it left, A grows again: one frame an event."""
    pool = pool_class(num_blocks, block_size)
    requests = {name: Request(name, range(1), 100) for name in NAMES}
    frames: list[Frame] = []

    def store(name: str, tokens: int, event: str) -> None:
        request = requests[name]
        pool.grow(request, tokens)
        request.num_computed_tokens += tokens
        note(event)

    def note(event: str) -> None:
        held = {name: request for name, request in requests.items() if request.blocks}
        tables = {name: tuple(request.blocks) for name, request in held.items()}
        stored = {name: request.num_computed_tokens for name, request in held.items()}
        frames.append(Frame(event, block_size, num_blocks, tables, stored))

    store("A", 6, "A stores a prompt of 6")
    store("B", 3, "B stores a prompt of 3")
    store("A", 2, "A stores tokens 7 and 8")
    store("B", 2, "B stores tokens 4 and 5")
    store("A", 1, "A stores token 9")
    pool.release(requests["B"])
    note("B ends")
    store("C", 11, "C stores a prompt of 11")
    store("A", 4, "A stores tokens 10 to 13")
    return frames


# The main job.


def main(argv: Sequence[str] | None, pool_class: Any, blocks_needed: Callable, slot: Callable) -> int:
    """The main job of s05."""
    args = options.parse("s05_paged_blocks", argv)
    return options.run(lambda: _paged(args, pool_class, blocks_needed, slot))


def _paged(args: argparse.Namespace, pool_class: Any, blocks_needed: Callable, slot: Callable) -> int:
    config = options.config_from(args)
    if args.trace:
        requests = traces.read_csv(args.trace)
        print(f"{len(requests):,} requests, each when its last token is stored\n")
        rows = sweep([request.max_kv_slots for request in requests], blocks_needed)
        print(_sweep_table(rows))
        options.json_out(args, {"sweep": rows})
        return 0

    heading("1. A block table")
    frames = story(pool_class)
    print(f"{BLOCKS} blocks of {SIZE} tokens. Memory: who owns block 0, 1, 2, …; a dot is a free block.\n")
    print(table(("event", "memory", "table of A", "of B", "of C"), [_story_row(frame) for frame in frames]))
    last = frames[-1]
    block, offset = slot(last.tables["A"], 9, SIZE)
    print(f"\nA's tenth token, position 9, lies in block {block} at offset {offset}: "
          f"entry 9 // {SIZE} of its table, offset 9 % {SIZE}.")  # fmt: skip

    heading("2. When a block is opened")
    print("One request, blocks of 4, a prompt of 3. `known` counts the token that was just sampled: its KV is stored by the\n"
          "step that feeds it, so this step stores token number `known` and opens a block if that one has no place.\n")  # fmt: skip
    print(table(("known", "stored", "blocks", "missing()", "known % 4 == 0", "known % 4 == 1"), opened(pool_class)))

    heading("3. The rules in circulation")
    print("A decode loop that opens a block by each rule, in pools that are exactly large enough.\n")
    rows3 = []
    for prompt, outputs, blocks, size in CASES:
        fares = [run_rule(pool_class, slot, prompt, outputs, blocks, size, rule) for rule in RULES.values()]
        rows3.append((f"{prompt} + {outputs}", f"{blocks} of {size}", *fares))
    print(table(("prompt + outputs", "pool", *RULES), rows3))

    heading("4. How large is a block?")
    requests = traces.azure_like("conv", 2000, seed=1)
    rows4 = sweep([request.max_kv_slots for request in requests], blocks_needed)
    print(f"{len(requests):,} requests with lengths like Azure's conversations, each when its last token is stored.\n")
    print(_sweep_table(rows4))

    heading("5. A leak")
    served, lacked, free, lost = leak(pool_class, traces.azure_like("conv", 20_000, seed=1), config)
    print(f"A pool of {config.num_blocks:,} blocks, one request at a time; every {LEAK_EVERY}th forgets to give its blocks back.\n"
          f"It served {served:,} requests. The next needed {lacked:,} blocks, {free:,} were free, and nobody was running:\n"
          f"{lost:,} blocks belonged to requests that had gone.")  # fmt: skip

    heading("6. One block, two owners")
    told = two_owners(slot)
    print("\n".join(told))
    pool = pool_class(BLOCKS, SIZE)
    blocks = pool.allocate(2)
    pool.free(blocks)
    try:
        pool.free(blocks)
    except BlockError as error:
        print(f"BlockPool says at the second free: {error}.")
    options.json_out(args, {"story": [frame.tables for frame in frames], "opened": opened(pool_class), "rules": rows3,
                            "sweep": rows4, "leak": [served, lacked, free, lost]})  # fmt: skip
    return 0


def _story_row(frame: Frame) -> tuple[str, ...]:
    tables = (" ".join(map(str, frame.tables.get(name, ()))) for name in NAMES)
    return frame.event, " ".join(name or "·" for name in frame.owners), *tables


def opened(pool_class: Any, prompt: int = 3, last: int = 10, size: int = SIZE) -> list[tuple[Any, ...]]:
    """What each rule says at each decode step: known, stored, blocks held, blocks lacking, and the two remainders."""
    pool = pool_class(BLOCKS, size)
    request = Request("r", range(prompt), 100)
    pool.grow(request, prompt)
    request.num_computed_tokens = prompt
    rows = []
    for known in range(prompt + 1, last + 1):
        missing = pool.missing(request, 1)
        says = ("yes" if known % size == remainder else "" for remainder in (0, 1))
        rows.append((known, known - 1, len(request.blocks), missing, *says))
        pool.grow(request, 1)
        request.num_computed_tokens += 1
    return rows


Rule = Callable[[Any, Request, int, int], bool]  # (pool, request, known tokens, block size) -> open a block now?
RULES: dict[str, Rule] = {
    "missing() > 0": lambda pool, request, known, size: pool.missing(request, 1) > 0,
    "known % B == 0": lambda pool, request, known, size: known % size == 0,
    "known % B == 1": lambda pool, request, known, size: known % size == 1,
}
CASES = ((3, 2, 1, 4), (4, 1, 1, 4), (4, 5, 2, 4), (2, 2, 3, 1))  # prompt, outputs, blocks in the pool, block size


def run_rule(pool_class: Any, slot: Callable, prompt: int, outputs: int, blocks: int, size: int, rule: Rule) -> str:
    """How one request fares in a pool of its own whose decode loop opens blocks by `rule`."""
    pool = pool_class(blocks, size)
    request = Request("r", range(prompt), outputs)
    pool.grow(request, prompt)
    request.num_computed_tokens = prompt
    for known in range(prompt + 1, prompt + outputs):  # the last output is never fed, so never stored
        try:
            if rule(pool, request, known, size):
                request.blocks += pool.allocate(1)
            slot(request.blocks, known - 1, size)
        except NoFreeBlocks:
            return f"at {known}: evicts for nothing"
        except BlockError:
            return f"at {known}: no place to write"
        request.num_computed_tokens += 1
    return "served"


def sweep(tokens: Sequence[int], blocks_needed: Callable, sizes: Iterable[int] = SIZES) -> list[tuple[Any, ...]]:
    """For each block size: slots of the last block left empty, their share of all slots held, and the tables' length."""
    rows = []
    for size in sizes:
        blocks = [blocks_needed(n, size) for n in tokens]
        held = sum(blocks) * size
        empty = held - sum(tokens)
        rows.append((size, empty / len(tokens), 100 * empty / held, sum(blocks) / len(blocks), max(blocks)))
    return rows


def _sweep_table(rows: Iterable[tuple[Any, ...]]) -> str:
    cells = [(size, f"{empty:.2f}", f"{share:.2f}%", f"{mean:,.1f}", longest, f"{size * KV_BYTES / 1e6:.2f}")
             for size, empty, share, mean, longest in rows]  # fmt: skip
    return (
        table(("block size", "empty slots a request", "of all held", "table, mean", "longest", "MB a block"), cells)
        + f"\n\nMB of a Llama-3-8B, {KV_BYTES:,} bytes a token."
    )


LEAK_EVERY = 50


def leak(pool_class: Any, requests: Iterable[Request], config: Any) -> tuple[int, int, int, int]:
    """Requests one after another, some of which never give back: (served, lacking, free, lost) when the pool is dry."""
    pool = pool_class(config.num_blocks, config.block_size)
    lost = served = 0
    for served, request in enumerate(requests):
        try:
            pool.grow(request, request.max_kv_slots)
        except NoFreeBlocks:
            return served, pool.missing(request, request.max_kv_slots), pool.num_free, lost
        if served % LEAK_EVERY == LEAK_EVERY - 1:
            lost += len(request.blocks)
        else:
            pool.release(request)
    return served + 1, 0, pool.num_free, lost


def two_owners(slot: Callable) -> list[str]:
    """What a double free does in a pool that does not check: a bare stack of free blocks."""
    stack = [3, 2, 1, 0]
    a = [stack.pop(), stack.pop()]
    stack += reversed(a)
    lines = [f"A pool without a check, 4 blocks of 4. A held {a}; they are freed: {len(stack)} blocks are free."]
    stack += reversed(a)
    lines.append(f"They are freed again: {len(stack)} blocks are free, of 4.")
    memory: dict[tuple[int, int], str] = {}
    tables = {name: [stack.pop(), stack.pop()] for name in "BC"}
    for name, blocks in tables.items():
        for position in range(8):
            memory[slot(blocks, position, 4)] = f"{name.lower()}{position}"
    reads = " ".join(memory[slot(tables["B"], position, 4)] for position in range(8))
    lines.append(f"B gets {tables['B']} and stores b0 … b7. C gets {tables['C']} and stores c0 … c7.")
    lines.append(f"B reads its KV: {reads}. No error.")
    return lines


# The memory map.

CELL, GAP = 19, 10


def svg(frame: Frame, title: str = "") -> str:
    """One frame as an SVG of 900 pixels' width: the requests' tables above, the physical blocks below, lines between."""
    pen = Pen("")
    size = frame.block_size
    wide = size * CELL
    pen.text(MARGIN, 28, title or frame.event, 17, more="font-weight='700'")
    state = f"{frame.num_free} of {frame.num_blocks} blocks free · {size} tokens a block"
    pen.text(WIDTH - MARGIN, 28, state, 13, SOFT, "text-anchor='end'")
    names = list(frame.tables)
    tints = {name: TINTS[NAMES.index(name) if name in NAMES else row] for row, name in enumerate(names)}
    floor = 62.0 + 62 * len(names) + 58  # where the physical blocks lie
    left = (WIDTH - frame.num_blocks * (wide + GAP) + GAP) / 2
    lines: list[str] = []
    for row, name in enumerate(names):
        y = 62.0 + 62 * row
        tint = tints[name]
        pen.text(MARGIN, y + 15, name, 15, more="font-weight='700'")
        tokens = frame.stored[name]
        empty = len(frame.tables[name]) * size - tokens
        pen.text(MARGIN, y + 33, f"{tokens} tokens, {empty} empty slot{'' if empty == 1 else 's'}", 11, SOFT)
        for i, block in enumerate(frame.tables[name]):
            x = 190.0 + i * (wide + GAP)
            for offset in range(size):
                position = i * size + offset
                pen.rect(x + offset * CELL, y, CELL, 22, tint if position < tokens else EMPTY, f"stroke='{CARD}'")
                if position < tokens:
                    more = "text-anchor='middle'"
                    pen.text(x + (offset + 0.5) * CELL, y + 15, str(position), 11, INK, more)
            pen.rect(x, y, wide, 22, "none", f"stroke='{INK}' rx='2'")
            pen.rect(x + wide / 2 - 24, y + 26, 48, 15, CARD)
            pen.text(x + wide / 2, y + 37, f"block {block}", 11, INK, "text-anchor='middle'")
            end = left + block * (wide + GAP) + wide / 2
            lines.append(_curve((x + wide / 2, y + 42), (end, floor - 2), tint))
    pen.parts[:0] = lines  # behind the tables
    for block, owner in enumerate(frame.owners):
        x, tokens, tint = left + block * (wide + GAP), 0, EMPTY
        if owner:
            tokens = frame.stored[owner] - frame.tables[owner].index(block) * size
            tint = tints[owner]
        for offset in range(size):
            pen.rect(x + offset * CELL, floor, CELL, 22, tint if offset < tokens else EMPTY, f"stroke='{CARD}'")
        pen.rect(x, floor, wide, 22, "none", f"stroke='{INK if owner else LINE}' rx='2'")
        words = f"{block}: {owner}" if owner else f"{block}: free"
        pen.text(x + wide / 2, floor + 38, words, 12, INK if owner else SOFT, "text-anchor='middle'")
    pen.text(WIDTH / 2, floor + 60, "physical blocks", 12, SOFT, "text-anchor='middle'")
    height = floor + 74
    label = escape(describe(frame), quote=True)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' height='{height:.0f}' role='img' "
        f"style='max-width:100%;height:auto' aria-label='{label}' {FONT}><title>{label}</title>"
        f"<rect x='0.5' y='0.5' width='{WIDTH - 1}' height='{height - 1}' rx='10' fill='{CARD}' stroke='{LINE}'/>"
        + "".join(pen.parts)
        + "</svg>"
    )


def _curve(start: Point, end: Point, colour: str) -> str:
    """From an entry of a table down to its block."""
    (x, y), (to_x, to_y) = start, end
    path = f"M{x:.1f},{y:.1f} C{x:.1f},{to_y - 26:.1f} {to_x:.1f},{y + 26:.1f} {to_x:.1f},{to_y:.1f}"
    return f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='2'/>"


def describe(frame: Frame) -> str:
    """The picture in a sentence, for a screen reader."""
    tables = "; ".join(f"{name} holds blocks {', '.join(map(str, blocks))}" for name, blocks in frame.tables.items())
    return f"{frame.event}. {tables}. {frame.num_free} of {frame.num_blocks} blocks are free"


def player(pool_class: Any) -> Any:
    """The story with two knobs, event and block size, over 32 slots; without ipywidgets the picture of its last event."""
    try:
        import ipywidgets as w
    except ImportError:
        from IPython.display import SVG

        print("The knobs need ipywidgets (python3 course.py lab installs it); here is the last picture.")
        return SVG(svg(story(pool_class)[-1]))
    size = w.SelectionSlider(options=(2, 4, 8, 16), value=SIZE, description="block size")
    event = w.IntSlider(min=1, max=len(story(pool_class)), description="event")
    play = w.Play(min=1, max=event.max, interval=1200)
    w.jslink((play, "value"), (event, "value"))
    picture = w.HTML()

    def draw(_: Any = None) -> None:
        picture.value = svg(story(pool_class, BLOCKS * SIZE // size.value, size.value)[event.value - 1])

    for knob in (size, event):
        knob.observe(draw, "value")
    draw()
    return w.VBox([w.HBox([play, event, size]), picture])

"""s07's simulator: the tree of all blocks that five conversations ever had, and which of them the pool still remembers.

`frames` runs a pool, yours where written; `svg` draws one frame. Both need nothing but the standard library; `show` adds
knobs where ipywidgets is there.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kit.drawing import BLAME, CARD, DECODE, EMPTY, FONT, INK, LINE, PREFILL, SOFT, Pen

BLOCK = 4
TURNS = "A B D A C E A B D B A C E D A B C D E A"  # who sends the next prompt
SYSTEMS = {"A": 0, "B": 0, "C": 0, "D": 1, "E": 1}  # which of two system prompts a conversation begins with
SYSTEM_BLOCKS = 2
GREEN = "#B9E3CF"


@dataclass(frozen=True)
class Frame:
    """The pool after one prompt. Blocks go by the labels of `tree`; queue: (block, label or "") of the free ones."""

    number: int
    who: str
    chain: tuple[str, ...]
    hit: frozenset[str]
    new: frozenset[str]
    evicted: frozenset[str]
    cached: Mapping[str, int]
    queue: tuple[tuple[int, str], ...]
    hits: int
    wanted: int


def prompt(who: str, turn: int) -> tuple[list[int], list[str]]:
    """(tokens, labels of the full blocks) of a conversation's turn: a system prompt, then one block more each turn."""
    system, own = SYSTEMS[who], 1000 * (ord(who) - 64)
    tokens = [*range(100 * system, 100 * system + SYSTEM_BLOCKS * BLOCK), *range(own, own + turn * BLOCK), own + 999]
    return tokens, [f"S{system + 1}.{i + 1}" for i in range(SYSTEM_BLOCKS)] + [f"{who}{i + 1}" for i in range(turn)]


def frames(pool_class: Any, hash_chain: Any, num_blocks: int = 14, tail_first: bool = True) -> list[Frame]:
    """Twenty prompts of five conversations, one after the other, through a pool."""
    pool, turns = pool_class(num_blocks, BLOCK), dict.fromkeys(SYSTEMS, 0)
    label_of: dict[bytes, str] = {}
    found: list[Frame] = []
    hits = wanted = 0
    for number, who in enumerate(TURNS.split(), 1):
        turns[who] += 1
        tokens, labels = prompt(who, turns[who])
        chain = hash_chain(tokens, BLOCK)
        label_of.update(zip(chain, labels))
        before = {label_of[name] for name in pool.holders}
        hit = pool.lookup(chain, len(tokens))
        blocks = pool.claim(hit, -(-len(tokens) // BLOCK) - len(hit))
        pool.register(blocks, chain)
        pool.free(reversed(blocks) if tail_first else blocks)
        cached = {label_of[name]: next(iter(held)) for name, held in pool.holders.items()}
        queue = tuple((block, label_of.get(pool.names[block], "")) for block in pool.free_queue)
        hits, wanted = hits + len(hit), wanted + len(blocks)
        reached, missed = frozenset(labels[: len(hit)]), frozenset(labels[len(hit) :])
        evicted = frozenset(before - set(cached))
        found.append(Frame(number, who, tuple(labels), reached, missed, evicted, cached, queue, hits, wanted))
    return found


def fewest_blocks() -> int:
    """The smallest pool in which each of the prompts fits by itself."""
    order = TURNS.split()
    return max(len(prompt(who, order.count(who))[1]) + 1 for who in SYSTEMS)


def svg(frame: Frame) -> str:
    """One frame as an SVG of 900 pixels' width."""
    pen = Pen("tree")
    step, w, h, left, top = 92.0, 82.0, 34.0, 16.0, 66.0
    share = f"{frame.hits} of {frame.wanted} blocks hit so far, {frame.hits / frame.wanted:.0%}"
    pen.text(16, 26, f"Prompt {frame.number}: {frame.who}, {len(frame.hit)} of {len(frame.chain)} full blocks hit", 15, INK,
             "font-weight='600'")  # fmt: skip
    pen.text(884, 26, share, 12, SOFT, "text-anchor='end'")
    x = 16.0
    for fill, edge, words in (
        (GREEN, INK, "hit now"), (PREFILL, INK, "computed now"), (EMPTY, LINE, "cached"), (CARD, BLAME, "evicted now"), (CARD, LINE, "gone"),
    ):  # fmt: skip
        dashed = "stroke-dasharray='4 3'" if fill == CARD else ""
        pen.rect(x, 38, 14, 14, fill, f"rx='3' stroke='{edge}' {dashed}")
        pen.text(x + 20, 50, words, 11.5, SOFT)
        x += 34 + 7 * len(words)
    order = TURNS.split()[: frame.number]
    for row, who in enumerate(SYSTEMS):
        y = top + row * 46
        owner = next(name for name in SYSTEMS if SYSTEMS[name] == SYSTEMS[who])  # in its row the system prompt is drawn
        _, labels = prompt(who, order.count(who))
        if who not in order:
            continue
        for column, label in enumerate(labels):
            x = left + column * step
            if column < SYSTEM_BLOCKS and who != owner:
                continue
            if column:
                start = y if column != SYSTEM_BLOCKS or who == owner else top + list(SYSTEMS).index(owner) * 46
                pen.line(x - step + w, start + h / 2, x, y + h / 2, SOFT)
            fill, edge = (EMPTY, LINE) if label in frame.cached else (CARD, LINE)
            fill = GREEN if label in frame.hit else PREFILL if label in frame.new else fill
            edge = BLAME if label in frame.evicted else edge
            dashed = "stroke-dasharray='4 3'" if fill == CARD else ""
            pen.rect(x, y, w, h, fill, f"rx='4' stroke='{edge}' stroke-width='1.6' {dashed}")
            where = f" · {frame.cached[label]}" if label in frame.cached else ""
            pen.text(x + w / 2, y + 21, label + where, 12, INK if fill != CARD else SOFT, "text-anchor='middle'")
    y = top + 46 * len(SYSTEMS) + 26
    pen.text(16, y, "The free queue: who is taken next stands in front; an empty place has no name", 12, DECODE)
    width = min(82.0, 868 / len(frame.queue))
    for i, (block, label) in enumerate(frame.queue):
        pen.rect(
            16 + i * width, y + 10, width - 3, 30, EMPTY if label else CARD, f"rx='3' stroke='{LINE}'", f"block {block}"
        )
        pen.text(16 + i * width + width / 2 - 1.5, y + 29, label, 11 if width > 30 else 8, INK, "text-anchor='middle'")
    height = y + 56
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 900 {height:.0f}' width='900' {FONT} role='img' "
        f"aria-label='The tree of blocks after prompt {frame.number}'>"
        f"<rect width='900' height='{height:.0f}' rx='8' fill='{CARD}' stroke='{LINE}'/>{''.join(pen.parts)}</svg>"
    )


def show(num_blocks: int = 14) -> Any:
    """The simulator with its knobs; without ipywidgets, a still picture of the last prompt."""
    lesson = importlib.import_module("s07_prefix_cache")

    @lru_cache
    def run(blocks: int, tail_first: bool) -> list[Frame]:
        return frames(lesson.PrefixPool, lesson.hash_chain, blocks, tail_first)

    try:
        import ipywidgets as widgets
    except ImportError:
        from IPython.display import SVG

        print("The knobs need ipywidgets (python3 course.py lab installs it); here is a still picture.")
        return SVG(svg(run(num_blocks, True)[-1]))
    step = widgets.IntSlider(1, 1, len(TURNS.split()), description="prompt")
    blocks = widgets.IntSlider(num_blocks, fewest_blocks(), 40, description="blocks")
    order = widgets.ToggleButtons(options=[("tail first", True), ("head first", False)], description="freed")
    play = widgets.Play(min=1, max=step.max, interval=700)
    widgets.jslink((play, "value"), (step, "value"))
    picture = widgets.HTML()

    def draw(*_: Any) -> None:
        picture.value = svg(run(blocks.value, order.value)[step.value - 1])

    for knob in (step, blocks, order):
        knob.observe(draw, "value")
    draw()

    class Tree(widgets.VBox):
        def __repr__(self) -> str:  # what a viewer without widgets shows
            return (
                f"{step.max} prompts through a pool of {blocks.value} blocks of {BLOCK} tokens. Prompt 1: nothing is cached"
            )

    return Tree([widgets.HBox([play, step]), widgets.HBox([blocks, order]), picture])

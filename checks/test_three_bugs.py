"""The sketch of lessons/s14-three-bugs.md: it has the three bugs that the page says, and no fourth."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from random import Random
from textwrap import indent
from types import SimpleNamespace

import pytest
from kit.config import Config
from kit.request import Request
from kit.runner import FakeRunner
from place import ROOT
from s14_unified_scheduler import UnifiedScheduler

PAGE = (ROOT / "lessons/s14-three-bugs.md").read_text("utf-8")
SKETCH, MENDED = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
HEAD, TAIL = SKETCH.split("\n        # Then those who wait")
WALK = "        for request in list(self.running):\n"
EVICT = "                self.preempt(victim)\n"
TAKE = "            self.take(request, n)\n            scheduled[request.id] = n\n            budget -= n\n"
MENDS = {  # bug -> replacements in the first loop
    "again": [(WALK, WALK + "            if request not in self.running:\n                continue\n")],
    "flag": [(EVICT, EVICT + "                preempted = True\n")],
    "itself": [
        (TAKE, f"            else:\n{indent(TAKE, '    ')}"),
        ("            else:\n", "                if victim is request:\n                    break\n            else:\n"),
    ],
}


@dataclass(eq=False)
class Item:
    id: str
    known: int
    computed: int = 0
    blocks: int = 0


def first_loop(*mended: str) -> str:
    """The page's code up to the end of the first loop, with some of its bugs mended."""
    head = HEAD
    for bug in (bug for bug in MENDS if bug in mended):
        for old, new in MENDS[bug]:
            assert head.count(old) == 1, f"the page has changed: {old!r}"
            head = head.replace(old, new)
    return head


def sketch(*mended: str) -> type:
    scope: dict = {"deque": deque}
    exec(f"{first_loop(*mended)}\n        # Then those who wait{TAIL}", scope)
    return scope["Sketch"]


def step(make: type, budget: int, free: int, *running: Item) -> SimpleNamespace:
    scheduler = make(budget, 4, free, 4)
    scheduler.running += running
    scheduled = scheduler.schedule()
    return SimpleNamespace(
        scheduled=scheduled, running=[one.id for one in scheduler.running], waiting=[one.id for one in scheduler.waiting]
    )


def test_the_mended_loop_of_the_page_is_the_sketch_with_its_three_mends():
    assert first_loop(*MENDS).endswith(MENDED)


@pytest.mark.parametrize("mended", [False, True])
def test_a_request_that_evicts_itself_is_served(mended):
    others = ("flag", "again")
    got = step(sketch(*others, *["itself"] * mended), 8, 0, Item("A", 4, 3, 1), Item("B", 5, 4, 1))
    assert (got.running, got.waiting) == (["A"], ["B"])
    assert got.scheduled == ({"A": 1} if mended else {"A": 1, "B": 1})


@pytest.mark.parametrize("mended", [False, True])
def test_a_step_that_evicts_admits_somebody(mended):
    got = step(sketch("itself", "again", *["flag"] * mended), 5, 0, Item("A", 5, 4, 1), Item("B", 8, 7, 2))
    assert got.scheduled == ({"A": 1} if mended else {"A": 1, "B": 4})
    assert got.waiting == (["B"] if mended else [])


@pytest.mark.parametrize("mended", [False, True])
def test_a_victim_is_visited_again(mended):
    got = step(sketch("itself", "flag", *["again"] * mended), 5, 0, Item("A", 5, 4, 1), Item("B", 8, 7, 2))
    assert (got.running, got.waiting) == (["A"], ["B"])
    assert got.scheduled == ({"A": 1} if mended else {"A": 1, "B": 4})


def test_the_first_can_end_in_an_endless_wait():
    scheduler = sketch("flag", "again")(8, 4, 2, 4)
    scheduler.waiting += [Item("A", 3), Item("B", 4)]
    scheduled = []
    for _ in range(9):
        scheduled.append(scheduler.schedule())
        for item in scheduler.running:
            item.known += item.computed == item.known
    assert scheduled[:3] == [{"A": 3, "B": 4}, {"A": 1, "B": 1}, {"A": 1}] and not any(scheduled[3:])
    assert [one.id for one in scheduler.waiting] == ["A", "B"] and not scheduler.running


def test_the_third_can_evict_somebody_who_was_served():
    got = step(sketch("itself", "flag"), 8, 0, Item("A", 5, 4, 1), Item("C", 2, 1, 1), Item("B", 8, 7, 2))
    assert got.scheduled == {"A": 1, "C": 1, "B": 6} and got.waiting == ["C", "B"]


def test_without_tight_memory_nobody_notices():
    running = [Item("A", 5, 4, 1), Item("B", 8, 7, 2)]
    assert step(sketch(), 8, 9, *running).scheduled == {"A": 1, "B": 1}


def agree(make: type, seed: int) -> bool:
    """Whether a sketch computes what s14's scheduler computes, step by step, on a random tight load."""
    rng = Random(seed)
    budget, seats, size = rng.randint(3, 12), rng.randint(1, 4), 4
    load = [(f"r{i}", rng.randint(1, 9), rng.randint(1, 8)) for i in range(rng.randint(2, 6))]
    blocks = max(-(-(prompt + new - 1) // size) for _, prompt, new in load) + rng.randint(0, 3)
    limits = dict(max_num_batched_tokens=budget, max_num_seqs=seats, num_blocks=blocks, block_size=size, watermark=0)
    ours, theirs = UnifiedScheduler(Config(**limits, allow_small_budget=True)), make(budget, seats, blocks, size)
    most = {}
    for name, prompt, new in load:
        ours.add(Request(name, range(prompt), new))
        theirs.waiting.append(Item(name, prompt))
        most[name] = prompt + new
    for _ in range(200):
        batch = ours.schedule()
        try:
            scheduled = theirs.schedule()
        except IndexError:  # it evicted everybody, and wanted more
            return False
        if {one.id: n for one, n in batch.tokens.items()} != scheduled:
            return False
        ours.update(batch, FakeRunner().execute(batch)[0])
        for item in [one for one in theirs.running if one.computed == one.known]:
            item.known += 1
            if item.known == most[item.id]:
                theirs.running.remove(item)
                theirs.free += item.blocks
        if not (ours.running or ours.waiting):
            return not (theirs.running or theirs.waiting) and theirs.free == blocks
    return False


def test_the_mended_sketch_is_the_scheduler_of_s14():
    assert all(agree(sketch(*MENDS), seed) for seed in range(150))


@pytest.mark.parametrize("left", MENDS)
def test_with_one_bug_left_it_is_not(left):
    assert not all(agree(sketch(*(bug for bug in MENDS if bug != left)), seed) for seed in range(150))

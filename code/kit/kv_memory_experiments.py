"""What s04 shows when it runs: three reservations, holes that fit nobody, and a paper's figure made again."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from types import ModuleType
from typing import Any

from kit import options, traces
from kit.errors import CourseError
from kit.report import heading, table
from kit.roofline import INK, SOFT, page
from kit.traces import exponential

MAX_LEN = 2048  # of OPT-13B, the paper's model
NUM_SLOTS = 15_728  # 12 GiB over OPT-13B's 819,200 bytes a token; the paper's Table 1 says 15.7K
PROMPT_MEAN, OUTPUT_MEAN = 161.31, 337.99  # ShareGPT's, as the paper gives them
# Kwon et al., SOSP 2023, Fig. 2, in per cent: token states, reservation, internal, external fragmentation and others.
FIGURE_2 = {"max": (20.4, 13.3, 57.3, 8.9), "pow2": (26.8, 17.9, 13.6, 41.6), "oracle": (38.2, 25.2, 0.0, 36.6)}
FIGURE_2_VLLM = 96.3
NAMES = ("tokens", "reserved", "internal", "external")


class Stopped(CourseError):
    """Nothing runs, and still the head of the queue finds no piece: it will wait for ever."""


def lengths(n: int, seed: int = 1) -> list[tuple[int, int]]:
    """(prompt, output) of n requests: exponential with ShareGPT's means, drawn again where they exceed MAX_LEN."""
    rng = Random(seed)
    found: list[tuple[int, int]] = []
    while len(found) < n:
        prompt, output = (max(1, round(exponential(rng, mean))) for mean in (PROMPT_MEAN, OUTPUT_MEAN))
        if prompt + output <= MAX_LEN:
            found.append((prompt, output))
    return found


def simulate(
    s04: Any,
    policy: str,
    memory: Any,
    load: Iterable[tuple[int, int]],
    max_len: int = MAX_LEN,
    watch: Callable[[Any], object] | None = None,
) -> Any:
    """The mean shares of a memory while a queue that never empties runs through it, first come, first served.

    A request starts when the memory has a piece for it, makes a token a step and leaves with its last one. Between two
    departures all grow evenly, so the middle of that time stands for it. The first fifth of the requests warms up.
    watch: called with the running requests in each such middle.

    Raises Stopped if the head of the queue fits nowhere though all the others have left.
    """
    queue, running, time = deque(load), [], 0.0
    num_requests = len(queue)
    warm_up, sums = 4 * len(queue) // 5, [0.0] * 4
    while queue:
        prompt, output = queue[0]
        size = s04.reserve(policy, prompt, output, max_len)
        start = memory.allocate(size)
        if start is not None:
            queue.popleft()
            running.append(s04.Reservation(prompt, output, size, start))
            continue
        if not running:
            raise Stopped(f"stopped: nothing runs, head needs {size:,} slots; {memory.num_free:,} of {memory.num_slots:,} are free, "
                          f"and {num_requests - len(queue):,} of {num_requests:,} requests have started")  # fmt: skip
        steps = min(one.output - one.made for one in running)
        for half in range(2):
            for one in running:
                one.made += steps / 2
            if half == 0 and len(queue) <= warm_up:
                now = s04.shares(running, memory.num_slots)
                sums = [total + steps * share for total, share in zip(sums, now)]
                time += steps
                if watch:
                    watch(running)
        for one in running:
            if one.made >= one.output:
                memory.free(one.start)
        running = [one for one in running if one.made < one.output]
    return s04.Shares(*(total / time if time else float("nan") for total in sums))


def paged(load: Iterable[tuple[int, int]], block_size: int = 16) -> float:
    """The share of handed-out slots that hold a token when each request has whole blocks, and only those it needs."""
    held = given = 0
    for prompt, output in load:
        for stored in range(prompt + 1, prompt + output + 1):
            held += stored
            given += -(-stored // block_size) * block_size
    return held / given


def snapshot(s04: Any, policy: str, memory: Any, at: int = 400) -> list[Any]:
    """The requests that run in the middle of a simulation, copied: (start, prompt + made, output - made, never used)."""
    seen: list[Any] = []

    def watch(running: Sequence[Any]) -> None:
        nonlocal seen, at
        at -= 1
        if at == 0:
            seen = [(r.start, r.prompt + r.made, r.output - r.made, r.size - r.prompt - r.output) for r in running]

    simulate(s04, policy, memory, lengths(1500), watch=watch)
    return sorted(seen)


def figures(s04: Any) -> list[tuple[str, str]]:
    """The lesson's picture: (file name, SVG). One strip of memory for each policy and allocator, at one moment."""
    rows = [
        (policy, name, memory)
        for policy in s04.POLICIES
        for name, memory in (("first fit", s04.FirstFit), ("buddy", s04.Buddy))
    ]
    colours, left, width = ("#0072B2", "#9cc9e6", "#E69F00"), 130, 610
    parts = [
        f"<text x='16' y='26' font-size='15' fill='{INK}'>Who has the slots: one moment of a KV cache of {NUM_SLOTS:,} slots</text>"
    ]
    for row, (policy, name, memory) in enumerate(rows[:1] + rows[2:]):
        y = 48 + 38 * row
        label = policy if policy == "max" else f"{policy}, {name}"
        parts.append(f"<text x='16' y='{y + 18}' font-size='12' fill='{INK}'>{label}</text>")
        parts.append(f"<rect x='{left}' y='{y}' width='{width}' height='26' fill='#fff' stroke='{SOFT}'/>")
        for start, *sizes in snapshot(s04, policy, memory(NUM_SLOTS)):
            at = start
            for size, colour in zip(sizes, colours):
                x, w = left + width * at / NUM_SLOTS, width * size / NUM_SLOTS
                parts.append(f"<rect x='{x:.1f}' y='{y + 1}' width='{w:.1f}' height='24' fill='{colour}'/>")
                at += size
            x = left + width * start / NUM_SLOTS
            parts.append(f"<line x1='{x:.1f}' y1='{y}' x2='{x:.1f}' y2='{y + 26}' stroke='{INK}' stroke-width='0.7'/>")
    y = 48 + 38 * 5 + 18
    words = ("holds a token", "reserved for one", "never used", "given to nobody")
    for i, (word, colour) in enumerate(zip(words, (*colours, "#ffffff"))):
        parts.append(f"<rect x='{left + 150 * i}' y='{y - 11}' width='13' height='13' fill='{colour}' stroke='{SOFT}'/>")
        parts.append(f"<text x='{left + 19 + 150 * i}' y='{y}' font-size='12' fill='{INK}'>{word}</text>")
    return [("s04_memory.svg", page(y + 16, "One moment of a KV cache under contiguous reservations", parts))]


def main(argv: Sequence[str] | None, s04: ModuleType) -> int:
    """The main job of s04. s04: the lesson, so that the learner's own pieces run."""
    return options.run(lambda: _main(options.parse("s04_kv_memory", argv), s04))


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _main(args: argparse.Namespace, s04: Any) -> int:
    if args.trace:
        return _trace(args, s04)
    data = {"request": _request(s04), "holes": _holes(s04), "figure": _figure(s04), "paged": _paged(s04)}
    options.json_out(args, data)
    return 0


def _request(s04: Any) -> list[Any]:
    print("All lengths are in tokens, and a token takes one slot of the KV cache.")
    heading("1. One request, three reservations")
    print(f"A prompt of 161 and an answer of 338, in a model with a context of {MAX_LEN:,}; half of the answer is made.\n")
    rows = []
    for policy in s04.POLICIES:
        size = s04.reserve(policy, 161, 338, MAX_LEN)
        now = s04.shares([s04.Reservation(161, 338, size, 0, made=169)], size)
        rows.append((policy, size, *(_percent(share) for share in now[:3])))
    print(table(("policy", "slots", "tokens %", "reserved %", "internal %"), rows))
    return rows


def _holes(s04: Any) -> list[str]:
    heading("2. Free, and of no use")
    memory = s04.FirstFit(32)
    pieces: dict[str, int] = {}
    lines: list[str] = []

    def show(what: str) -> None:
        cells = ["·"] * memory.num_slots
        for name, start in pieces.items():
            cells[start : start + memory.used[start]] = name * memory.used[start]
        lines.append(f"  {what:24}{''.join(cells)}")

    for name, size in zip("ABCDEF", (6, 4, 7, 5, 4, 3)):
        pieces[name] = memory.allocate(size)
    show("A to F have come")
    for name in "BDF":
        memory.free(pieces.pop(name))
    show("B, D and F have gone")
    asked, longest = 9, max(length for _, length in memory.holes)
    lines.append(f"\n{memory.num_free} of {memory.num_slots} slots are free, the longest hole has {longest}: "
                 f"a request that needs {asked} {'waits' if memory.allocate(asked) is None else 'starts'}.")  # fmt: skip
    lines.append("")
    for name, size in (("G", 5), ("H", 2)):
        start = memory.allocate(size)
        if start is not None:
            pieces[name] = start
        show(f"{name} asks for {size}")
    print("\n".join(lines))
    return lines


def _figure(s04: Any, n: int = 3000) -> list[Any]:
    heading("3. A figure of 2023, made again")
    print(f"{n:,} requests with ShareGPT's mean lengths, exponential; {NUM_SLOTS:,} slots; per cent of all slots. In the last\n"
          "column the slots that nobody was given are left out of the account.\n")  # fmt: skip
    load, rows, stops = lengths(n), [], []
    for policy in s04.POLICIES:
        for name, memory in (("first fit", s04.FirstFit), ("buddy", s04.Buddy)):
            try:
                got = simulate(s04, policy, memory(NUM_SLOTS), load)
            except Stopped as error:
                stops.append(f"{policy}, {name}: {error}.")
                rows.append((policy, name, "stopped", *"----"))
                continue
            rows.append((policy, name, *(_percent(share) for share in got), _percent(got.tokens / (1 - got.external))))
        paper = FIGURE_2[policy]
        rows.append((policy, "paper", *map(str, paper), _percent(paper[0] / (100 - paper[3]))))
    print(table(("policy", "allocator", *(f"{name} %" for name in NAMES), "without external"), rows))
    if stops:
        print("\n" + "\n".join(stops))
    spread = []
    for policy in s04.POLICIES:
        tokens = [100 * simulate(s04, policy, s04.Buddy(NUM_SLOTS), lengths(n, seed)).tokens for seed in range(1, 6)]
        spread.append(f"{policy} {min(tokens):.1f} to {max(tokens):.1f}")
    print(f"\nTokens under a buddy allocator, over five seeds: {', '.join(spread)} %.")
    return rows


def _paged(s04: Any) -> list[Any]:
    heading("4. Used is not wasted")
    used = [FIGURE_2[policy][0] for policy in s04.POLICIES]
    rows = [(f"Orca ({policy})", share, f"{100 - share:.1f}") for policy, share in zip(s04.POLICIES, used)]
    rows.append(("vLLM", FIGURE_2_VLLM, f"{100 - FIGURE_2_VLLM:.1f}"))
    print("The paper's figure again: what holds tokens, and what does not.\n")
    print(table(("system", "used %", "wasted %"), rows))
    print(
        f"\nIn blocks of 16, handed out one by one, {100 * paged(lengths(3000)):.1f} % of what is handed out holds tokens."
    )
    return rows


def _trace(args: argparse.Namespace, s04: Any) -> int:
    """The same with the lengths of a real load, in a memory as large as eight of its longest requests."""
    parts = [(len(request.prompt), request.max_tokens) for request in traces.read_csv(args.trace)]
    max_len = 1 << (max(prompt + output for prompt, output in parts) - 1).bit_length()
    num_slots = 8 * max_len
    print(f"{len(parts):,} requests, max_len {max_len:,}, {num_slots:,} slots; per cent of all slots\n")
    rows = []
    for policy in s04.POLICIES:
        for name, memory in (("first fit", s04.FirstFit), ("buddy", s04.Buddy)):
            got = simulate(s04, policy, memory(num_slots), parts[:3000] * (1 if len(parts) > 300 else 300 // len(parts) + 1),
                           max_len)  # fmt: skip
            rows.append((policy, name, *(_percent(share) for share in got)))
    print(table(("policy", "allocator", *(f"{name} %" for name in NAMES)), rows))
    print(f"\nThe first {min(len(parts), 3000):,} of them, in a queue that is never empty.")
    options.json_out(args, rows)
    return 0

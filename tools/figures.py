"""Write the lessons' computed pictures in lessons/figures; with --check, say which of them are stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "lessons" / "figures"


def pictures() -> Iterator[tuple[str, str]]:
    """Every picture as (file name, SVG), computed by the answers in solutions/."""
    sys.path.insert(0, str(ROOT / "solutions"))
    import s03_step_cost
    import s04_kv_memory
    import s12_preemption
    from kit import (
        blocktree,
        chunking_simulator,
        fairness_simulator,
        kv_memory_experiments,
        paging,
        preemption_pictures,
        roofline,
        unified,
    )
    from kit.drawing import svg
    from kit.prefixes import picture
    from kit.simulators import S08, S09, frames, presets
    from s05_paged_blocks import BlockPool
    from s07_prefix_cache import PrefixPool, hash_chain
    from s14_unified_scheduler import UnifiedScheduler

    yield "s02_when_stored.svg", when_stored(3, 4)
    yield from roofline.figures(s03_step_cost)
    yield from kv_memory_experiments.figures(s04_kv_memory)
    yield "s05_block_table.svg", paging.svg(paging.story(BlockPool)[-1], "Two block tables, one pool")
    yield "s07_shared_chain.svg", picture(PrefixPool, hash_chain)
    yield "s07_simulator.svg", blocktree.svg(blocktree.frames(PrefixPool, hash_chain)[15])
    yield "s14_one_rule.svg", unified.picture(UnifiedScheduler)
    static = frames(presets(S08)["eight requests"])
    continuous = frames(presets(S09)["eight requests"])
    yield "s08_simulator.svg", svg(static[5], "r4")
    yield "s09_simulator.svg", svg(continuous[-1], versus=static[len(continuous) - 1])
    yield from of_kernels()
    small = presets()["running example"]
    example = frames(small)
    yield "s10_simulator.svg", svg(example[1], "D")
    yield "s10_simulator_evicted.svg", svg(example[2], "C")
    wide = frames(replace(small, config=replace(small.config, num_blocks=8)))
    yield "s10_simulator_pinned.svg", svg(wide[-1], pinned=example[0].run)
    yield "s10_simulator_twin.svg", svg(frames(presets()["evil twin"])[-1])
    yield "s10_simulator_story_a.svg", svg(frames(presets()["story A: stuck behind the head"])[-1], "r20")
    yield "s12_bills.svg", preemption_pictures.bills_svg(s12_preemption)
    yield (
        "s12_timelines.svg",
        preemption_pictures.svg(preemption_pictures.frames(s12_preemption, preemption_pictures.Setup())[-1]),
    )
    thrash = frames(presets()["thrash"])
    yield "s10_simulator_thrash.svg", svg(max(thrash, key=lambda frame: len(frame.waiting)))
    # the tenth step of mixed chunks; prompts first, the step behind it, in which the wait is paid
    for name, preset, step in (
        ("s11_simulator", "mixed chunks", 9),
        ("s11_simulator_unmixed", "chunks, prompts first", 10),
    ):
        yield f"{name}.svg", chunking_simulator.svg(chunking_simulator.frames(chunking_simulator.PRESETS[preset])[step])
    yield "s13_simulator.svg", fairness_simulator.picture("two classes")
    yield "s13_simulator_flood.svg", fairness_simulator.picture("a flood")


def of_kernels() -> Iterator[tuple[str, str]]:
    """The pictures of s17 and s18; what has to launch a kernel only where there is Triton's interpreter."""
    import s03_step_cost
    import s17_triton_decode
    import s18_triton_prefill
    from kit import gpu, kernels, kernels_prefill, programs, tiles

    yield "s17_roofline.svg", kernels.roofline()
    yield "s18_roofline.svg", kernels_prefill.figure(s03_step_cost)
    if gpu.INTERPRETED and not gpu.lacking():
        yield "s17_programs.svg", programs.figure(s17_triton_decode)
        yield "s18_tiles.svg", tiles.figure(s18_triton_prefill)


def when_stored(prompt: int, new: int) -> str:
    """Pass by pass, which tokens of a request are fed, stored and sampled; a column a token, the last one never stored."""
    left, top, wide, high = 150, 66, 62, 44
    width, height = left + (prompt + new) * wide + 130, top + new * high + 66
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13" fill="#222">',
        "<title>A token is stored in the pass that it is fed to, one pass after it was sampled</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="22">prompt</text>',
        f'<text x="{left + prompt * wide}" y="22">sampled, one a pass</text>',
        f'<text x="{left + (prompt + new) * wide + 12}" y="46" font-weight="bold">slots used</text>',
    ]
    for token in range(prompt + new):
        x = left + token * wide + wide / 2 - 3
        slot = f"slot {token}" if token < prompt + new - 1 else "no slot"
        parts.append(f'<text x="{x:g}" y="46" text-anchor="middle" fill="#666">{slot}</text>')
    for number in range(1, new + 1):
        y, stored = top + (number - 1) * high, prompt + number - 1
        fed = prompt if number == 1 else 1
        name = f"pass {number}: {'prefill' if number == 1 else 'decode'}"
        parts.append(f'<text x="14" y="{y + 25}" font-weight="bold">{name}</text>')
        for token in range(prompt + new):
            if token < stored - fed:
                look, text = 'fill="#cfe3f2"', f"t{token}"
            elif token < stored:
                look, text = 'fill="#0072B2"', f"t{token}"
            elif token == stored:
                look, text = 'fill="#fff" stroke="#D55E00" stroke-width="2" stroke-dasharray="5 3"', f"t{token}"
            else:
                look, text = 'fill="#f4f4f4"', ""
            x = left + token * wide
            colour = "#fff" if stored - fed <= token < stored else "#222"
            parts.append(f'<rect x="{x}" y="{y + 3}" width="{wide - 6}" height="{high - 10}" rx="4" {look}/>')
            parts.append(f'<text x="{x + wide / 2 - 3:g}" y="{y + 25}" text-anchor="middle" fill="{colour}">{text}</text>')
        parts.append(f'<text x="{left + (prompt + new) * wide + 12}" y="{y + 25}">{stored}</text>')
    y = top + new * high + 20
    keys = (
        ("#0072B2", "", "fed and stored in this pass"),
        ("#cfe3f2", "", "stored before"),
        ("#fff", "#D55E00", "sampled"),
    )
    for i, (fill, edge, text) in enumerate(keys):
        x = left + i * 200
        line = f' stroke="{edge}" stroke-width="2" stroke-dasharray="5 3"' if edge else ""
        parts.append(f'<rect x="{x}" y="{y - 13}" width="18" height="16" rx="3" fill="{fill}"{line}/>')
        parts.append(f'<text x="{x + 26}" y="{y}">{text}</text>')
    last = f"t{prompt + new - 1} is sampled and never fed: {prompt} + {new} - 1 = {prompt + new - 1} slots."
    parts.append(f'<text x="{left}" y="{y + 30}" font-weight="bold">{last}</text>')
    return "\n".join([*parts, "</svg>"])


def main(argv: list[str]) -> int:
    stale = []
    for name, picture in pictures():
        path = FIGURES / name
        if path.exists() and path.read_text("utf-8") == picture + "\n":
            continue
        stale.append(name)
        if "--check" not in argv:
            FIGURES.mkdir(parents=True, exist_ok=True)
            path.write_text(picture + "\n", "utf-8")
    if stale and "--check" in argv:
        print(f"stale: {', '.join(stale)}; run python3 tools/figures.py", file=sys.stderr)
        return 1
    print(f"{'wrote ' + ', '.join(stale) if stale else 'all pictures are fresh'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

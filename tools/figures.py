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
    from kit import blocktree, kv_memory_experiments, paging, roofline
    from kit.drawing import svg
    from kit.prefixes import picture
    from kit.simulators import S08, S09, frames, presets
    from s05_paged_blocks import BlockPool
    from s07_prefix_cache import PrefixPool, hash_chain

    yield from roofline.figures(s03_step_cost)
    yield from kv_memory_experiments.figures(s04_kv_memory)
    yield "s05_block_table.svg", paging.svg(paging.story(BlockPool)[-1], "Two block tables, one pool")
    yield "s07_shared_chain.svg", picture(PrefixPool, hash_chain)
    yield "s07_simulator.svg", blocktree.svg(blocktree.frames(PrefixPool, hash_chain)[15])
    static = frames(presets(S08)["eight requests"])
    continuous = frames(presets(S09)["eight requests"])
    yield "s08_simulator.svg", svg(static[5], "r4")
    yield "s09_simulator.svg", svg(continuous[-1], versus=static[len(continuous) - 1])
    small = presets()["running example"]
    example = frames(small)
    yield "s10_simulator.svg", svg(example[1], "D")
    yield "s10_simulator_evicted.svg", svg(example[2], "C")
    wide = frames(replace(small, config=replace(small.config, num_blocks=8)))
    yield "s10_simulator_pinned.svg", svg(wide[-1], pinned=example[0].run)
    yield "s10_simulator_twin.svg", svg(frames(presets()["evil twin"])[-1])
    yield "s10_simulator_story_a.svg", svg(frames(presets()["story A: stuck behind the head"])[-1], "r20")
    thrash = frames(presets()["thrash"])
    yield "s10_simulator_thrash.svg", svg(max(thrash, key=lambda frame: len(frame.waiting)))


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

"""The lessons: what they quote is fresh, what they point to exists, and all have the same shape."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest
from place import LESSONS, ROOT, STEMS, cut

SECTIONS = (
    *("Why", "Idea", "How it works", "Try it", "Build it", "In production"),
    *("What this still does not solve", "Quiz"),
)
WORDS = range(1200, 2201)
FENCE = re.compile(r"^```.*?^```\s*$", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
LINK = re.compile(r"(!?)\[(?:[^\]]*)\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|<img[^>]*\bsrc=\"([^\"]+)\"")
PAGES = sorted(
    path
    for folder in (ROOT, ROOT / "lessons", ROOT / "checks", ROOT / "bench", ROOT / ".github")
    for path in folder.glob("**/*.md" if folder.name == ".github" else "*.md")
)

lessons = pytest.mark.parametrize("lesson", LESSONS)
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(lesson: str) -> str:
    return (ROOT / f"lessons/{lesson}.md").read_text("utf-8")


def prose(text: str) -> str:
    """A page without code, outputs and comments."""
    return COMMENT.sub("", FENCE.sub("", text))


def headings(text: str, level: int) -> list[str]:
    return re.findall(rf"^{'#' * level} (.+?)\s*$", prose(text), re.M)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings, and those that it sets itself."""
    seen: dict[str, int] = {}
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for title in re.findall(r"^#+ (.+?)\s*$", prose(text), re.M):
        slug = re.sub(r"[^\w\- ]", "", title.lower().replace("`", "")).replace(" ", "-")
        found.add(slug if slug not in seen else f"{slug}-{seen[slug]}")
        seen[slug] = seen.get(slug, 0) + 1
    return found


@lru_cache
def symbols(path: Path) -> set[str]:
    """Every class, function, module constant and attribute of a file, by qualified name and by its last part."""
    tree = ast.parse(path.read_text("utf-8"))
    found = {name for name, _ in cut._symbols(tree)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                found.add(ast.unparse(target).removeprefix("self."))
    return found | {name.rpartition(".")[2] for name in found}


@lessons
def test_outputs_and_excerpts_of_a_lesson_are_fresh(lesson):
    pytest.importorskip("cogapp", reason="cogapp is not installed")
    import refresh

    diff = refresh.stale(ROOT / f"lessons/{lesson}.md")
    assert not diff, f"python tools/refresh.py mends this:\n{diff}"


def test_the_first_check_in_the_readme_is_fresh():
    pytest.importorskip("cogapp", reason="cogapp is not installed")
    import refresh

    diff = refresh.stale(ROOT / "README.md")
    assert not diff, f"python tools/refresh.py mends this:\n{diff}"


@lessons
def test_a_lesson_quotes_outputs_only_through_the_tool(lesson):
    """A text block outside cog markers would go stale unseen. Diagrams, commands and sketches say so by their language."""
    rest = re.sub(r"\[\[\[cog.*?\[\[\[end\]\]\]", "", text_of(lesson), flags=re.S)
    blocks = [block.splitlines()[1:-1] for block in FENCE.findall(rest) if re.match(r"```(text)?\s*\n", block)]
    plain = [lines for lines in blocks if not all(re.match(r"(\$ )?(python3?|pytest|git) ", line) for line in lines)]
    assert not plain, f"these blocks are typed, not run: {plain}"


@lessons
def test_a_lesson_has_the_eight_sections_in_order(lesson):
    assert tuple(headings(text_of(lesson), 2)) == SECTIONS
    assert len(headings(text_of(lesson), 1)) == 1


@lessons
def test_a_lesson_is_read_in_half_an_hour(lesson):
    words = len(re.findall(r"\S+", prose(text_of(lesson))))
    assert words in WORDS, f"{lesson} has {words} words; {WORDS.start} to {WORDS.stop - 1} are wanted"


@lessons
def test_an_excerpt_has_at_most_fifteen_lines(lesson):
    for block in re.findall(r"^```python\n(.*?)^```", text_of(lesson), re.M | re.S):
        assert block.count("\n") <= 15, f"{lesson}: a code block of {block.count(chr(10))} lines:\n{block}"


@lessons
def test_build_it_names_every_exercise_of_the_lesson(lesson):
    part = text_of(lesson).partition("\n## Build it")[2].partition("\n## ")[0]
    for exercise in cut.exercises(ROOT / f"solutions/{lesson}.py"):
        assert re.search(rf"\b{exercise.name.rpartition('.')[2]}\b", part), f"Build it says nothing about {exercise.name}"


@lessons
def test_every_section_that_a_test_or_hint_sends_to_exists(lesson):
    known = set(headings(text_of(lesson), 2) + headings(text_of(lesson), 3))
    sources = [*(ROOT / "tests").glob("*.py"), *(ROOT / "lessons/hints").glob(f"{lesson}*")]
    for source in sources:
        text = source.read_text("utf-8")
        named = re.findall(rf"{lesson}/([A-Z][^\"'\\{{}}\n]*)", text) + re.findall(
            rf"{lesson}\.md, \\?\"([^\"\\{{}}]+)", text
        )
        for name in named:
            assert name in known, f'{source.name} sends to "{name}", which {lesson}.md has not'


@pages
def test_links_of_a_page_resolve(page):
    text = page.read_text("utf-8")
    for _, link, image in LINK.findall(COMMENT.sub("", FENCE.sub("", text))):
        target = link or image
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name}: {target} points to nothing"
        assert path.is_relative_to(ROOT), f"{page.name}: {target} leaves the repository"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text("utf-8")), f"{page.name}: {target}: no such heading"


@pages
def test_symbols_that_a_page_names_exist(page):
    """`code/s10_scheduler.py::Scheduler.add` and the like; a reference to another project's file is not ours to check."""
    for file, symbol in re.findall(r"`([\w./-]+\.py)::([\w.]+)", page.read_text("utf-8")):
        candidates = [ROOT / file, ROOT / "solutions" / file, ROOT / "code" / file, ROOT / "tests" / file]
        found = [path for path in candidates if path.exists()]
        ours = file.split("/")[0] in {"code", "solutions", "tests", "tools", "kit", "checks"} or Path(file).stem in STEMS
        assert found or not ours, f"{page.name}: there is no {file}"
        if found:
            assert symbol in symbols(found[0]), f"{page.name}: {file} has no {symbol}"

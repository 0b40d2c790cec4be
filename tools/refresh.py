"""Refresh what the lessons quote: outputs of scripts and excerpts of code, pasted between cog markers.

    python tools/refresh.py           rewrite the blocks of every lesson
    python tools/refresh.py --check   say which blocks are stale, and change nothing

A block is written so (one line may hold both markers):

    <!-- [[[cog run("solutions/s10_scheduler.py", section="A queue that looks healthy") ]]] -->
    <!-- [[[end]]] -->

In a block stand `run`, `markdown`, `excerpt` and `signature`. The same input gives the same text on every machine.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from textwrap import dedent

from commands.environment import needs

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "lessons").glob("*.md"))]
LONGEST_EXCERPT = 15  # lines: more than that is read in the file
HEADING = re.compile(r"(?:=+ |#+ |\d+\. |Part \d)|^(?=\S).*\n[-=]{3,}$")


class RefreshError(Exception):
    """A block that asks for something that isn't there. Its text is one sentence."""


def run(script: str, *args: str, section: str | None = None, until: str | None = None) -> None:
    """Paste what a script prints, as a text block.

    section: from the first line that contains this, up to the next heading (`1. …`, `== …`, or an underlined line).
    until: end before the first later line that contains this instead.
    """
    lines = output(script, *args).splitlines()
    if section is not None:
        lines = _slice(lines, section, until, " ".join([script, *args]))
    _paste("text", lines)


def markdown(script: str, *args: str) -> None:
    """Paste what a script prints as it is: a table in Markdown."""
    import cog  # type: ignore[import-not-found]  # it exists while cog runs a block

    cog.outl(output(script, *args).rstrip())


def excerpt(lesson: str, symbol: str) -> None:
    """Paste a class, method or function without its docstring and its `@exercise`: at most 15 lines."""
    lines, node = _find(lesson, symbol)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list if ast.unparse(d) != "exercise")])
    doc = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
    doc_lines = range(doc.lineno, (doc.end_lineno or 0) + 1) if doc else range(0)
    if doc and not lines[doc_lines.stop - 1].strip():
        doc_lines = range(doc.lineno, doc_lines.stop + 1)  # the blank line below it too
    marks = {d.lineno for d in node.decorator_list if ast.unparse(d) == "exercise"}
    kept = [i for i in range(first, (node.end_lineno or 0) + 1) if i not in doc_lines and i not in marks]
    if len(kept) > LONGEST_EXCERPT:
        raise RefreshError(f"{symbol} has {len(kept)} lines without its docstring; an excerpt has {LONGEST_EXCERPT}")
    _paste("python", dedent("\n".join(lines[i - 1] for i in kept)).splitlines())


def signature(*symbols: str) -> None:
    """Paste the first lines of functions: `signature("s10_scheduler", "Scheduler.add", "Scheduler.preempt")`."""
    lesson, *names = symbols
    pasted: list[str] = []
    for name in names:
        lines, node = _find(lesson, name)
        head = lines[node.lineno - 1 : node.body[0].lineno - 1] or [lines[node.lineno - 1]]
        pasted += dedent("\n".join(head)).splitlines()
        pasted[-1] += " ..."
    _paste("python", pasted)


def first_check(lesson: str) -> None:
    """Paste what `python3 course.py check` says about a lesson of which nothing is written yet."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "course"
        shutil.copytree(ROOT, fresh, ignore=shutil.ignore_patterns(".*", "__pycache__", "notebooks", "checks"))
        subprocess.run([sys.executable, "tools/cut.py", "--force"], cwd=fresh, check=True, capture_output=True)
        done = subprocess.run(
            [sys.executable, "course.py", "check", lesson], cwd=fresh, capture_output=True, text=True, encoding="utf-8"
        )
    _paste("text", [f"$ python3 course.py check {lesson}", *done.stdout.splitlines()])


@lru_cache
def output(script: str, *args: str) -> str:
    """Standard output of a script of the repository under `python -S` in an empty folder, without anything inherited.

    A lesson that needs a package gets `-s` in place of `-S`, and so does one that is asked for a model.
    """
    env = {key: os.environ[key] for key in ("PATH", "SYSTEMROOT") if key in os.environ}
    env |= {"PYTHONIOENCODING": "utf-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as empty:
        command = [
            sys.executable,
            "-s" if needs(Path(script).stem) or "--model" in args else "-S",
            str(ROOT / script),
            *args,
        ]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env, cwd=empty)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RefreshError(f"{' '.join([script, *args])} ended with exit code {done.returncode}: {last}")
    return done.stdout


def refreshed(path: Path) -> str:
    """The text of a lesson with every block made anew. RefreshError names the file if one can't be made."""
    from cogapp import Cog  # type: ignore[import-untyped]

    cog = Cog()
    cog.options.prologue = "from refresh import excerpt, first_check, markdown, run, signature"
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return cog.process_string(path.read_text("utf-8"), fname=path.name)
    except Exception as error:
        raise RefreshError(f"{path.relative_to(ROOT)}: {str(error).splitlines()[-1]}") from error
    finally:
        sys.path[:] = before


def stale(path: Path) -> str:
    """A diff from a lesson as it stands to what it should be; empty if it is fresh."""
    has, should = path.read_text("utf-8").splitlines(), refreshed(path).splitlines()
    return "\n".join(difflib.unified_diff(has, should, f"{path.name} as it stands", "refreshed", lineterm="", n=1))


def _slice(lines: list[str], start: str, until: str | None, command: str) -> list[str]:
    first = next((i for i, line in enumerate(lines) if start in line), None)
    if first is None:
        raise RefreshError(f"{command} prints no line with {start!r}")
    for i in range(first + 1, len(lines)):
        if (until in lines[i]) if until is not None else (i > first + 1 and _is_heading(lines, i)):
            return lines[first:i]
    if until is not None:
        raise RefreshError(f"{command} prints no line with {until!r} after {start!r}")
    return lines[first:]


def _is_heading(lines: list[str], i: int) -> bool:
    return HEADING.match("\n".join(lines[i : i + 2])) is not None


def _find(lesson: str, symbol: str) -> tuple[list[str], ast.FunctionDef | ast.ClassDef]:
    """(lines of the solution, the node of `symbol` in it)."""
    text = (ROOT / "solutions" / f"{lesson}.py").read_text("utf-8")
    node: ast.AST = ast.parse(text)
    for part in symbol.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = [child for child in ast.iter_child_nodes(node) if isinstance(child, kinds) and child.name == part]
        if not found:
            raise RefreshError(f"solutions/{lesson}.py has no {symbol}")
        node = found[-1]
    return text.splitlines(), node  # type: ignore[return-value]


def _paste(language: str, lines: list[str]) -> None:
    import cog  # type: ignore[import-not-found]  # it exists while cog runs a block

    while lines and not lines[-1].strip():
        lines = lines[:-1]
    cog.outl(f"```{language}\n" + "\n".join(line.rstrip() for line in lines) + "\n```")


def main() -> int:
    parser = argparse.ArgumentParser(description="Refresh the outputs and excerpts in the lessons.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a block is stale")
    parser.add_argument("lessons", nargs="*", help="file names in lessons/, without suffix; all if none is given")
    args = parser.parse_args()
    paths = [ROOT / "lessons" / f"{name}.md" for name in args.lessons] or PAGES
    code = 0
    for path in paths:
        try:
            diff = stale(path)
            if diff and args.check:
                print(diff)
                code = 1
            elif diff:
                path.write_text(refreshed(path), "utf-8")
                print(f"refreshed {path.relative_to(ROOT)}")
        except RefreshError as error:
            print(error, file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())

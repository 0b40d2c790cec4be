"""Cut the answers out of solutions/: code/ holds the same files, with the body of every `@exercise` missing.

    python3 tools/cut.py              write code/sNN_*.py; refuses when somebody has written an exercise there
    python3 tools/cut.py --force      write them all the same
    python3 tools/cut.py --into DIR   write them to another folder, which borrows kit
    python3 tools/cut.py --check      say whether code/ equals the cut, but for exercise bodies

Positions come from the syntax tree and text is copied, so that everything else stays equal to the byte.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
BLANK = "raise NotImplementedError"
UNWRITTEN: tuple[list[str], ...] = ([], [BLANK], ["pass"], ["..."])  # kit.exercise.is_written sees it so too


class CutError(Exception):
    """A file that can't be cut or may not be overwritten. Its text is one sentence."""


@dataclass(frozen=True)
class Exercise:
    """An exercise in a file: `lines[start:end]` is its body, counted from 0, without the docstring."""

    name: str
    start: int
    end: int
    indent: str
    written: bool


def exercises(path: Path) -> list[Exercise]:
    """Every `@exercise` of a file, from top to bottom. CutError if the file is no Python."""
    lines, tree = _parse(path)
    return [_exercise(lines, name, node) for name, node in _functions(tree) if _is_exercise(node)]


def gone(answer: Path, target: Path) -> list[str]:
    """Exercises of the answer that the learner's file has no more, with what is missing: `@exercise` or all of it."""
    there = {exercise.name for exercise in exercises(target)}
    missing = [exercise.name for exercise in exercises(answer) if exercise.name not in there]
    names = {name for name, _ in _symbols(_parse(target)[1])}
    return [f"`@exercise` above {name}" if name in names else name for name in missing]


def cut(path: Path) -> list[str]:
    """The lines of a file without the bodies of its exercises."""
    return [line for line, _ in _numbered_cut(path)]


def check_answer(path: Path) -> None:
    """Refuse an answer that can't be borrowed, because its code would need more than its module's globals."""
    lines, tree = _parse(path)
    codes = dict(_codes(compile(tree, str(path), "exec")))
    for name, node in _functions(tree):
        if not _is_exercise(node):
            continue
        where = f"{_label(path)}:{node.lineno} {name}"
        if "<locals>" in name:
            raise CutError(f"{where} stands inside a function: move the exercise to a class or to the module")
        if ast.get_docstring(node) is None:
            raise CutError(f"{where} has no docstring: it is all that the learner gets to read")
        if not _exercise(lines, name, node).written:
            raise CutError(f"{where} has no answer to cut")
        free = codes[name].co_freevars
        if "__class__" in free:
            raise CutError(f"{where} uses super() without arguments: an answer is borrowed without its class, name it")
        if free:
            raise CutError(f"{where} is a closure over {', '.join(free)}: an answer is borrowed without its surroundings")


def write(into: Path, force: bool) -> list[Path]:
    """Cut every lesson into a folder: all of them or, if that would cost somebody's work, none."""
    for answer in _lessons("solutions"):
        check_answer(answer)
        target = into / answer.name
        if force or not target.exists():
            continue
        mine = [exercise for exercise in exercises(target) if exercise.written]
        if mine:
            more = f" and {len(mine) - 1} more exercises are" if len(mine) > 1 else " is"
            where = f"{_label(target)}:{mine[0].start + 1} {mine[0].name}"
            raise CutError(f"{where}{more} written there: nothing was changed; --force overwrites")
    into.mkdir(parents=True, exist_ok=True)
    if not (into / "kit").exists():
        shim = f'"""A shim onto the course\'s kit."""\n\n__path__ = [{str(ROOT / "code" / "kit")!r}]\n'
        (into / "kit.py").write_text(shim, "utf-8")
    written = []
    for answer in _lessons("solutions"):
        target = into / answer.name
        text = "".join(cut(answer)).encode()
        if not target.exists() or target.read_bytes() != text:
            target.write_bytes(text)
            written.append(target)
    return written


def difference(answer: Path, target: Path) -> str | None:
    """The first line on which a lesson differs from the cut of its answer outside the exercises; None if none does."""
    if not target.exists():
        return f"{_label(target)} is missing: python3 tools/cut.py writes it"
    expected, found = _numbered_cut(answer), _numbered_cut(target)
    if any(exercise.written for exercise in exercises(target)):  # somebody works here: blank lines are free
        expected, found = ([row for row in rows if row[0].strip()] for rows in (expected, found))
    symbols = [(node.lineno, node.end_lineno or 0, name) for name, node in _symbols(_parse(target)[1])]
    end = (None, len(_parse(target)[0]))
    for should, has in zip_longest(expected, found, fillvalue=end):
        if should[0] == has[0]:
            continue
        line = has[1] + 1
        symbol = [name for first, last, name in symbols if first <= line <= last]
        where = f"{_label(target)}:{line} {symbol[-1] if symbol else '(module)'}"
        return (
            f"{where} differs from {_label(answer)}:{should[1] + 1}\n"
            f"  it is      {_shown(has[0])}\n"
            f"  should be  {_shown(should[0])}"
        )
    return None


def check(folder: Path) -> list[str]:
    """What is wrong with the lessons of a folder, one text per file."""
    answers = _lessons("solutions")
    for answer in answers:
        check_answer(answer)
    names = {answer.name for answer in answers}
    strays = [path for path in sorted(folder.glob("s[0-9][0-9]_*.py")) if path.name not in names]
    problems = [difference(answer, folder / answer.name) for answer in answers]
    return [problem for problem in problems if problem] + [f"{_label(path)} has no answer" for path in strays]


def _lessons(folder: str) -> list[Path]:
    return sorted((ROOT / folder).glob("s[0-9][0-9]_*.py"))


def _parse(path: Path) -> tuple[list[str], ast.Module]:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CutError(f"{_label(path)}:{line} is not UTF-8: save the file in that encoding") from None
    if "\0" in text:  # what Python says of it differs, and has no line
        line = text.count("\n", 0, text.index("\0")) + 1
        raise CutError(f"{_label(path)}:{line} is no Python: it has a NUL byte, delete it")
    try:
        return re.findall(r"[^\n]*\n|[^\n]+", text), ast.parse(text)
    except SyntaxError as error:
        raise CutError(f"{_label(path)}:{error.lineno} is no Python: {error.msg}") from None


def _symbols(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """(qualified name, node) of every class and function, outer ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + child.name, child  # type: ignore[misc]
            yield from _symbols(child, prefix + child.name + ("." if isinstance(child, ast.ClassDef) else ".<locals>."))
        else:
            yield from _symbols(child, prefix)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    return ((name, node) for name, node in _symbols(tree) if not isinstance(node, ast.ClassDef))


def _is_exercise(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) in ("exercise", "kit.exercise.exercise") for decorator in node.decorator_list)


def _exercise(lines: list[str], name: str, node: ast.FunctionDef) -> Exercise:
    has_docstring = ast.get_docstring(node, clean=False) is not None
    body = node.body[1:] if has_docstring else node.body
    start = node.body[0].end_lineno or 0 if has_docstring else body[0].lineno - 1
    end = node.end_lineno or 0
    indent = " " * (node.col_offset + 4)
    for i in range(end, len(lines)):  # comments below the last statement belong to the body too
        if lines[i].strip() and not lines[i].startswith(f"{indent}#"):
            break
        if lines[i].strip():
            end = i + 1
    written = [ast.unparse(statement) for statement in body] not in UNWRITTEN
    return Exercise(name, start, end, indent, written)


def _numbered_cut(path: Path) -> list[tuple[str, int]]:
    """(line, its number in the file counted from 0) of a file without its exercise bodies."""
    lines = _parse(path)[0]
    kept: list[tuple[str, int]] = []
    done = 0
    for exercise in exercises(path):
        kept += [(lines[i], i) for i in range(done, exercise.start)]
        newline = "\r\n" if lines[exercise.end - 1].endswith("\r\n") else "\n"
        kept.append((f"{exercise.indent}{BLANK}{newline}", exercise.start))
        done = exercise.end
    return kept + [(lines[i], i) for i in range(done, len(lines))]


def _codes(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    """(qualified name, code) of everything defined in a module; of two equal names the last counts, as in Python."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield prefix + const.co_name, const
            is_function = const.co_flags & 0x2  # CO_NEWLOCALS: a class body lacks it
            yield from _codes(const, prefix + const.co_name + (".<locals>." if is_function else "."))


def _label(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _shown(line: str | None) -> str:
    return "(the file ends)" if line is None else repr(line.rstrip("\n"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut the answers out of solutions/ and write what is left to code/.")
    parser.add_argument("--check", action="store_true", help="only say whether code/ equals the cut outside exercises")
    parser.add_argument("--into", type=Path, default=ROOT / "code", metavar="DIR", help="use DIR in place of code/")
    parser.add_argument("--force", action="store_true", help="overwrite exercises that are written there")
    args = parser.parse_args()
    into = args.into.resolve()
    try:
        if args.check:
            problems = check(into)
            print("\n".join(problems) or f"{into.name}/ equals the cut of solutions/")
            return 1 if problems else 0
        for path in write(into, args.force):
            print(f"cut {_label(path)}")
    except CutError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

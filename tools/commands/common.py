"""What the commands share: lessons, their exercises and hints, the learner's progress, colours."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cut

ROOT = Path(__file__).resolve().parents[2]
PROGRESS = ROOT / ".course" / "progress.json"
COLOURS = {"red": 31, "green": 32, "yellow": 33, "bold": 1}


class Problem(Exception):
    """Something that the learner can put right: one sentence on stderr, exit code 2."""


def paint(colour: str, text: str) -> str:
    """`text` in a colour, or bold, where the output is a terminal that wants it."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[{COLOURS[colour]}m{text}\033[0m"


def explain_unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    return f"there is no {what} {name!r}: " + (f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}")


def lessons() -> list[str]:
    """All lessons with code, in order: s03_step_cost, …"""
    return sorted(path.stem for path in (ROOT / "code").glob("s[0-9][0-9]_*.py"))


def find_lesson(name: str) -> str:
    """The lesson called s10, 10, s10_scheduler or code/s10_scheduler.py; Problem with the nearest one if there is none."""
    known = lessons()
    stem = Path(name).name.partition(".")[0].lower()
    number = re.fullmatch(r"s?(\d+)", stem)
    for lesson in known:
        if stem == lesson or (number and int(number[1]) == int(lesson[1:3])):
            return lesson
    if number and known:
        near = min(known, key=lambda lesson: abs(int(lesson[1:3]) - int(number[1])))
    else:
        by_word = {word: lesson for lesson in known for word in (lesson, lesson[:3], lesson[4:], *lesson[4:].split("_"))}
        match = difflib.get_close_matches(stem, by_word, 1, cutoff=0.0)
        near = by_word[match[0]] if match else ""
    raise Problem(f"there is no lesson {name!r}" + (f"; the nearest is {near}" if near else ""))


def lesson_argument(args: list[str], command: str) -> str:
    """The lesson that a command was given first."""
    if not args:
        raise Problem(f"which lesson? For example: python3 course.py {command} {lessons()[-1][:3]}")
    return find_lesson(args[0])


@dataclass(frozen=True, slots=True)
class Exercise:
    """One function that the learner writes. `name` is qualified; `where` is the file and line of its body in code/."""

    name: str
    where: str
    written: bool
    extension: bool


def exercises(lesson: str) -> list[Exercise]:
    """A lesson's exercises in the order in which the lesson, and so its hints, takes them; extensions last."""
    order = list(hints(lesson))
    path = ROOT / "code" / f"{lesson}.py"
    answer = ROOT / "solutions" / path.name
    try:
        mine = cut.exercises(path)
        gone = cut.gone(answer, path) if answer.exists() else []
    except cut.CutError as error:
        raise Problem(str(error)) from None
    if gone:
        is_gone, it = ("are gone", "them") if len(gone) > 1 else ("is gone", "it")
        gone = gone if len(gone) <= 3 else [*gone[:2], f"and {len(gone) - 2} more"]
        raise Problem(
            f"code/{path.name}: {', '.join(gone)} {is_gone}; put {it} back (git diff code/{path.name} shows {it})"
        )
    found = [Exercise(e.name, f"code/{path.name}:{e.start + 1}", e.written, f"{e.name} (extension)" in order) for e in mine]
    place = {heading.removesuffix(" (extension)"): number for number, heading in enumerate(order)}
    return sorted(found, key=lambda e: place.get(e.name, len(order)))


def hints(lesson: str) -> dict[str, list[str]]:
    """Exercise -> its layers, from lessons/hints/<lesson>.md: `## name` or `## name (extension)`, then a numbered list."""
    path = ROOT / "lessons" / "hints" / f"{lesson}.md"
    if not path.exists():
        return {}
    found = {}
    for part in re.split(r"^## ", path.read_text("utf-8"), flags=re.M)[1:]:
        name, _, text = part.partition("\n")
        found[name.strip()] = [" ".join(layer.split()) for layer in re.split(r"^\d\. ", text, flags=re.M)[1:]]
    return found


def layers_of(lesson: str, exercise: str) -> list[str]:
    known = hints(lesson)
    return known.get(exercise) or known.get(f"{exercise} (extension)") or []


def section(lesson: str, exercise: str) -> str:
    """Where a lesson speaks of an exercise: the first name in quotation marks in the hint's second layer."""
    layers = layers_of(lesson, exercise)
    quoted = re.search(r'"([^"]+)"', layers[1]) if len(layers) > 1 else None
    return f'lessons/{lesson}.md, "{quoted[1]}"' if quoted else f"lessons/{lesson}.md"


def hand_over(command: list[str], cwd: Path | None = None) -> int:
    """Run a command that has the terminal to itself, Ctrl-C included. Returns its exit code as a shell would."""
    with subprocess.Popen(command, cwd=cwd) as process:
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:
                continue  # it reached the command too, which knows what to do with it


def progress() -> dict[str, Any]:
    """What is remembered between commands: {"check" | "hint" | "quiz": {lesson: …}}. An unreadable file counts as empty."""
    try:
        known = json.loads(PROGRESS.read_text("utf-8"))
    except (OSError, ValueError):
        known = {}
    return {key: known.get(key) or {} for key in ("check", "hint", "quiz")}


def remember(kind: str, lesson: str, value: Any) -> None:
    known = progress()
    known[kind][lesson] = value
    try:
        PROGRESS.parent.mkdir(exist_ok=True)
        PROGRESS.write_text(json.dumps(known, indent=1), "utf-8")
    except OSError as error:
        print(f"(progress is not kept: {error})", file=sys.stderr)


def fingerprint(lesson: str) -> str:
    """Changes with the learner's file, so that an old result is not taken for a new one."""
    return hashlib.sha256((ROOT / "code" / f"{lesson}.py").read_bytes()).hexdigest()[:16]

"""python3 course.py watch LESSON [pytest options]

Checks a lesson, and again whenever you save a file in code/ or the lesson's tests. Ctrl-C ends it."""

from __future__ import annotations

import sys
import time

from commands.check import check
from commands.common import ROOT, Problem, lesson_argument

POLL_S = 0.3


def main(args: list[str]) -> int:
    lesson = lesson_argument(args, "watch")
    seen: dict[str, int] = {}
    try:
        while True:
            now = stamps(lesson)
            if now == seen:
                time.sleep(POLL_S)
                continue
            seen = now
            if sys.stdout.isatty():
                print("\033[2J\033[H", end="")
            try:
                check(lesson, args[1:])
            except Problem as problem:  # a half-typed line must not end the watch
                print(problem)
            print("\nwatching; Ctrl-C ends it", flush=True)
    except KeyboardInterrupt:
        return 0


def stamps(lesson: str) -> dict[str, int]:
    """File -> time of its last change. A file that an editor is just replacing is left out."""
    found = {}
    for path in [*(ROOT / "code").rglob("*.py"), ROOT / "tests" / f"test_{lesson}.py"]:
        try:
            found[str(path)] = path.stat().st_mtime_ns
        except OSError:
            continue
    return found

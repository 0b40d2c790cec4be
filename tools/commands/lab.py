"""python3 course.py lab [LESSON] [jupyter options]

Opens the notebooks in JupyterLab, or the one of a lesson. The first time it installs requirements-core.txt,
and what the lesson needs besides."""

from __future__ import annotations

from commands.common import ROOT, Problem, find_lesson, hand_over
from commands.environment import needs, python_for


def main(args: list[str]) -> int:
    target, options, packages = "notebooks", args, ["requirements-core.txt"]
    if args and not args[0].startswith("-"):
        lesson, options = find_lesson(args[0]), args[1:]
        target, packages = f"notebooks/{lesson}.ipynb", packages + needs(lesson)
        if not (ROOT / target).exists():
            raise Problem(f"{lesson} has no notebook")
    return hand_over([python_for(*packages), "-m", "jupyterlab", target, *options], ROOT)

#!/usr/bin/env python3
"""The learner's command: python3 course.py COMMAND [LESSON] [...]. It needs nothing but Python >= 3.10."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

COMMANDS = {
    "status": "what you have written, what is correct, and what comes next",
    "check": "test your code of a lesson: red is wrong, yellow is not written yet, green is right",
    "watch": "check again whenever you save",
    "hint": "a question, then the place in the lesson, then the step in words",
    "quiz": "the six questions of a lesson",
    "lab": "the notebooks, in JupyterLab",
    "run": "run a lesson, with its own options: run s10 --help",
    "test": "test the whole course: the solutions and everything around them",
}


def main(argv: list[str]) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as `>&-` does
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="replace")  # a console that lacks a letter is no reason to stop
    from commands.common import Problem, explain_unknown

    if os.name == "nt":
        os.system("")  # turns on colours in a Windows console
    name, args = (argv[0], argv[1:]) if argv else ("--help", [])
    try:
        if name in ("-h", "--help", "help"):
            print(__doc__, "\n")
            for known, line in COMMANDS.items():
                print(f"  {known:8}{line}")
            print("\nA lesson may be called s10, 10 or s10_scheduler.")
            return 0
        if name not in COMMANDS:
            raise Problem(explain_unknown("command", name, list(COMMANDS)))
        command = import_module(f"commands.{name}")
        if name != "run" and args and args[0] in ("-h", "--help"):
            print(command.__doc__)
            return 0
        return command.main(args)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `course.py status | head`: whoever reads us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # while the commands were still being imported
        sys.exit(130)

"""python3 course.py test

Tests the whole course: every lesson's tests on the solutions, then what keeps lessons, notebooks and simulators honest,
then ruff and mypy. It looks at nothing that you wrote; `check` does. Installs requirements-dev.txt the first time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from commands.common import ROOT, Problem, paint
from commands.environment import python_for

PARTS = ["course.py", "solutions", "code/kit", "tools", "tests", "checks", "bench"]  # code/s*.py are the learner's
OURS = [part for part in PARTS if (ROOT / part).exists()]
STEPS = [
    ("tests on the solutions", ["pytest", "-q", "-ra", "--solutions", "tests"]),
    ("checks of the course", ["pytest", "-q", "-ra", "--continue-on-collection-errors", "checks"]),
    ("ruff check", ["ruff", "check", *OURS]),
    ("ruff format", ["ruff", "format", "--check", *OURS]),
    ("mypy", ["mypy"]),
]


def main(args: list[str]) -> int:
    if args:
        raise Problem("course.py test takes no options; for your own code: python3 course.py check LESSON")
    python = python_for("requirements-dev.txt")
    rows = []
    for name, command in STEPS:
        print(paint("bold", f"\n== {name}: python -m {' '.join(command)}"), flush=True)
        start = time.monotonic()
        code, last = run([python, "-m", *command])
        rows.append((name, code, last, time.monotonic() - start))
    print(paint("bold", "\n== closing summary"))
    for name, code, last, seconds in rows:
        mark = paint("green", "ok    ") if code == 0 else paint("red", "FAILED")
        print(f"{mark}  {name:24}{seconds:6.0f} s   {last}")
    return int(any(code for _, code, _, _ in rows))


def run(command: list[str]) -> tuple[int, str]:
    """Run a command, pass its output on as it comes; returns its exit code and last line."""
    env = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"}
    last = ""
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line.strip() or last
    return process.returncode, last.strip("= ")

"""Where the checks find the course, and how they run a piece of it: always in a process of its own, with a time limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("code", "solutions", "tests", "tools", "lessons", "notebooks", "quizzes", "bench", "checks/wrong_answers")

sys.path[:0] = [str(ROOT / "solutions"), str(ROOT / "tools")]

import cut  # noqa: E402
from commands.environment import installed, needs, requirement_lines  # noqa: E402

STEMS = [path.stem for path in sorted((ROOT / "solutions").glob("s[0-9][0-9]_*.py"))]
LESSONS = [stem for stem in STEMS if cut.exercises(ROOT / "solutions" / f"{stem}.py")]  # what has exercises has all forms


def clean_env(**more: str) -> dict[str, str]:
    """The environment without anything that could decide what a Python imports or a lesson does."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COURSE", "PYTEST", "VIRTUAL_ENV"))}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1", "NO_COLOR": "1", **more}


def lacks(lesson: str) -> str:
    """What a lesson needs and this Python has not; empty if it has everything."""
    return ", ".join(line for file in needs(lesson) for line in requirement_lines(ROOT / file) if not installed(line))


def run(*command: str | Path, cwd: Path = ROOT, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, or raise subprocess.TimeoutExpired."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, cwd=cwd, env=clean_env(**env), capture_output=True, text=True, encoding="utf-8", timeout=timeout
    )


def python(*args: str | Path, cwd: Path = ROOT, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Run this Python without site-packages: what it runs has nothing but the standard library.

    A lesson that needs a package (tools/commands/environment.py says which) is run with them.
    """
    bare = "-s" if args and needs(Path(args[0]).stem) else "-S"
    return run(sys.executable, bare, *args, cwd=cwd, timeout=timeout, **env)


def grade(course: Path, *args: str, timeout: float = 120, **env: str) -> dict[str, Any]:
    """Run a course's tests; what tests/conftest.py writes at the end, plus `exit` and `output`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args)
        done = run(*command, cwd=course, timeout=timeout, COURSE_RESULT=str(file), **env)
        if not file.exists() or done.returncode not in (0, 1):
            raise AssertionError(f"pytest did not come to its end:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return {**json.loads(file.read_text("utf-8")), "exit": done.returncode, "output": done.stdout + done.stderr}


def copy_course(into: Path) -> Path:
    """A copy of the course whose code/ is freshly cut: what a learner clones. The learner's own files are only read."""
    for folder in FOLDERS:
        if (ROOT / folder).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(ROOT / folder, into / folder, ignore=ignore)
    for name in (
        "pyproject.toml",
        "course.py",
        "constraints-cpu.txt",
        *(path.name for path in ROOT.glob("requirements*.txt")),
    ):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, into / name)
    done = python("tools/cut.py", "--force", cwd=into)
    assert done.returncode == 0, done.stderr
    return into

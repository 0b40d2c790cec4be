"""python3 course.py check LESSON [pytest options]

Tests your code of a lesson, code/<lesson>.py. Red: wrong. Yellow: not written yet. Green: right.
More arguments go to pytest: `check s10 -k watermark` runs the tests whose names contain that word, and
`check s10 --mine` takes the earlier lessons from your code too instead of lending them from solutions/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from commands.common import ROOT, Exercise, Problem, exercises, fingerprint, lesson_argument, paint, remember, section
from commands.environment import needs, python_for


def main(args: list[str]) -> int:
    lesson = lesson_argument(args, "check")
    return check(lesson, args[1:])


def check(lesson: str, options: list[str]) -> int:
    """Run a lesson's tests on the learner's code, say how it stands and what to do next. 0 when the core is right."""
    mine = exercises(lesson)
    test_file = f"tests/test_{lesson}.py"
    if not mine:
        raise Problem(f"{lesson} has no exercises: later lessons use it as it is (python3 course.py run {lesson[:3]})")
    if not (ROOT / test_file).exists():
        raise Problem(f"{test_file} is missing: git checkout {test_file} brings it back")
    result = run_pytest(python_for("requirements-test.txt", *needs(lesson)), [test_file, *options])
    if not options:
        numbers = {"passed": result["passed"], "failed": len(result["failed"])}
        total = result["passed"] + len(result["failed"]) + len(result["todo"]) + result["not_run"]
        remember("check", lesson, {**numbers, "total": total, "fingerprint": fingerprint(lesson)})
    return tell(lesson, mine, result)


def run_pytest(python: str, arguments: list[str]) -> dict[str, Any]:
    """Run pytest, whose conftest writes what came out: {"passed": n, "failed": [{test, where, message}], "todo": [...], "not_run": n}."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        env = {**os.environ, "COURSE_RESULT": str(file), "PYTHONUTF8": "1"}
        # native tracebacks: pytest's own parse a file anew for every failure, seconds that nobody sees the result of
        command = [python, "-m", "pytest", "-q", "--tb=native", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, encoding="utf-8", errors="replace"
        )
        result = json.loads(file.read_text("utf-8")) if file.exists() else None
    if result is None or done.returncode not in (0, 1) or not (result["passed"] or result["failed"] or result["todo"]):
        sys.stdout.write(done.stdout + done.stderr)
        if "No module named" in done.stderr:
            raise Problem("this Python cannot run the tests; delete the folder .venv and repeat the command")
        if done.returncode == 5 and "deselected" in done.stdout:  # by -k or the like: not the learner's code
            raise Problem("no test has such a name")
        raise Problem(f"pytest stopped with exit code {done.returncode}; its output is above")
    result["lent"] = next((line for line in done.stdout.splitlines() if line.startswith("lent from")), "")
    return result


def tell(lesson: str, mine: list[Exercise], result: dict[str, Any]) -> int:
    failed, todo = result["failed"], result["todo"]
    by_exercise: dict[str, int] = {}
    for item in todo:
        by_exercise[item["exercise"]] = by_exercise.get(item["exercise"], 0) + 1
    for item in failed[1:]:
        print(paint("red", f"FAIL  {short_name(item['test'])}"))
    if failed:  # one message at a time, the first one nearest to the prompt
        print(paint("red", f"FAIL  {short_name(failed[0]['test'])}   {failed[0]['where']}"))
        print(textwrap.indent(failed[0]["message"], "      "))
    for exercise in mine:
        tests = sum(n for name, n in by_exercise.items() if name == exercise.name)
        if tests or not exercise.written:
            waiting = f", {tests} test{'s' * (tests > 1)} on it" if tests else ""
            kind = " (an extension)" if exercise.extension else ""
            print(paint("yellow", f"TODO  {exercise.where} {exercise.name}{kind} is not written yet{waiting}"))
    counts = [paint("green", f"{result['passed']} correct")]
    counts += [paint("red", f"{len(failed)} wrong")] * bool(failed)
    counts += [paint("yellow", f"{len(todo)} to do")] * bool(todo)
    counts += [paint("yellow", f"{result['not_run']} not run")] * bool(result["not_run"])
    print(f"\n{lesson}: {', '.join(counts)}")
    if result["lent"]:
        print(result["lent"])
    print(f"next: {next_step(lesson, mine, failed)}")
    return int(bool(failed) or any(not exercise.written and not exercise.extension for exercise in mine))


def next_step(lesson: str, mine: list[Exercise], failed: list[dict[str, str]]) -> str:
    short = lesson[:3]
    if failed:
        name = short_name(failed[0]["test"])
        if "::" not in failed[0]["test"]:  # no test ran, for the file could not even be imported
            return paint("bold", f"mend {failed[0]['where'] or name}")
        word = name.partition("[")[0]
        return f"mend what {paint('bold', name)} found\n      alone: python3 course.py check {short} -k {word}"
    for number, exercise in enumerate(mine, 1):
        if not exercise.written:
            ask = "an extension, if you like: " if exercise.extension else ""
            write = paint("bold", f"write {exercise.name} at {exercise.where}")
            place = section(lesson, exercise.name)
            return f"{ask}{write}\n      read   {place}\n      stuck? python3 course.py hint {short} {number}"
    return f"python3 course.py run {short} shows your code at work; then python3 course.py quiz {short}"


def short_name(test: str) -> str:
    return test.rpartition("::")[2]

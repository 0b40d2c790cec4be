"""code/ is the cut of solutions/, and a fresh cut tells the learner what to do and nothing else."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest
from place import LESSONS, STEMS, cut, grade, python, run

# Tests that pass before anybody has written a line, each with the reason.
PASS_UNWRITTEN: dict[str, str] = {}


def solve(course: Path, lesson: str, names: set[str]) -> None:
    """Copy some answers of a lesson into code/."""
    answer, target = course / f"solutions/{lesson}.py", course / f"code/{lesson}.py"
    lines, answers = target.read_text("utf-8").splitlines(True), answer.read_text("utf-8").splitlines(True)
    for stub, full in reversed(list(zip(cut.exercises(target), cut.exercises(answer)))):
        if stub.name in names:
            lines[stub.start : stub.end] = answers[full.start : full.end]
    target.write_text("".join(lines), "utf-8")


def digest(folder: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()


@pytest.fixture
def course(fresh, tmp_path) -> Path:
    """A fresh course that may be written to."""
    return Path(shutil.copytree(fresh, tmp_path / "course"))


def test_code_equals_the_cut_of_solutions_outside_exercises():
    done = python("tools/cut.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fresh_cut_holds_every_lesson_and_no_answer(fresh):
    assert [path.stem for path in sorted((fresh / "code").glob("s*.py"))] == STEMS
    for lesson in LESSONS:
        written = [exercise.name for exercise in cut.exercises(fresh / f"code/{lesson}.py") if exercise.written]
        assert written == [], f"{lesson} comes with an answer"
        assert all(exercise.written for exercise in cut.exercises(fresh / f"solutions/{lesson}.py")), lesson


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_test_of_a_fresh_cut_ends_in_todo_and_nothing_else(fresh, lesson):
    before = digest(fresh / "code")
    result = grade(fresh, f"tests/test_{lesson}.py", "-rA")
    assert result["failed"] == [], result["output"]
    passed = {line.removeprefix("PASSED ") for line in result["output"].splitlines() if line.startswith("PASSED ")}
    expected = {name for name in PASS_UNWRITTEN if name.startswith(f"tests/test_{lesson}.py")}
    assert passed == expected, "these pass before anybody has written a line: see PASS_UNWRITTEN"
    assert result["exit"] == 1 and result["todo"], "with exercises unwritten a run must not look green"
    assert digest(fresh / "code") == before, "a test run changed the learner's file"
    named = {entry["exercise"] for entry in result["todo"]}
    unknown = named - {exercise.name for exercise in cut.exercises(fresh / f"code/{lesson}.py")}
    assert not unknown, f"a TODO names {unknown}, which are exercises of another lesson"


@pytest.mark.parametrize("lesson", LESSONS)
@pytest.mark.parametrize("half", (0, 1))
def test_a_half_written_lesson_is_green_and_yellow_and_never_red(course, lesson, half):
    names = [exercise.name for exercise in cut.exercises(course / f"code/{lesson}.py")]
    solve(course, lesson, set(names[half::2]))
    result = grade(course, f"tests/test_{lesson}.py")
    assert result["failed"] == [], result["output"]
    assert {entry["exercise"] for entry in result["todo"]} <= set(names) - set(names[half::2])
    assert python("tools/cut.py", "--check", cwd=course).returncode == 0, "--check must hold in a learner's clone"
    assert python(f"code/{lesson}.py", "--help", cwd=course).returncode == 0


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_answers_written_into_code_pass_strictly(course, lesson):
    solve(course, lesson, {exercise.name for exercise in cut.exercises(course / f"code/{lesson}.py")})
    assert (course / f"code/{lesson}.py").read_bytes() == (course / f"solutions/{lesson}.py").read_bytes()
    result = grade(course, f"tests/test_{lesson}.py")
    assert (result["failed"], result["todo"], result["exit"]) == ([], [], 0), result["output"]


def test_cutting_never_overwrites_what_somebody_wrote(course):
    lesson = LESSONS[0]
    first = cut.exercises(course / f"code/{lesson}.py")[0]
    solve(course, lesson, {first.name})
    (course / f"code/{LESSONS[-1]}.py").unlink()
    before = digest(course / "code")
    done = python("tools/cut.py", cwd=course)
    assert done.returncode == 1 and f"code/{lesson}.py:{first.start + 1} {first.name} is written there" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and digest(course / "code") == before
    assert python("tools/cut.py", "--into", course / "elsewhere", cwd=course).returncode == 0
    assert digest(course / "code") == before
    assert python("tools/cut.py", "--force", cwd=course).returncode == 0
    assert not any(exercise.written for exercise in cut.exercises(course / f"code/{lesson}.py"))


def test_a_cut_into_another_folder_runs_from_there(fresh, tmp_path):
    assert python("tools/cut.py", "--into", tmp_path / "mine", cwd=fresh).returncode == 0
    for lesson in LESSONS:
        done = python(
            "-c", f"import {lesson}; from kit.exercise import summary; print(summary('{lesson}'))", cwd=tmp_path / "mine"
        )
        assert done.stdout.startswith(f"{lesson}: borrowed: "), done.stderr


@pytest.mark.parametrize(
    ("old", "new", "symbol"),
    [
        ("    def can_admit(self)", "    def can_admit(self, request)", "ContinuousBatcher.can_admit"),
        ("Free the slots", "Free the seats", "ContinuousBatcher.retire"),
        ("from kit.request import Request", "from kit.request import Request as R", "(module)"),
    ],
)
def test_check_names_the_first_difference_by_file_line_and_symbol(course, old, new, symbol):
    file = course / "code/s09_continuous_batching.py"
    text = file.read_text("utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), "utf-8")
    done = python("tools/cut.py", "--check", cwd=course)
    line = 1 + text[: text.index(old)].count("\n")
    assert done.returncode == 1
    assert done.stdout.startswith(f"code/s09_continuous_batching.py:{line} {symbol} differs from solutions/"), done.stdout


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("class A:\n    @exercise\n    def f(self):\n        '''D.'''\n        return super().f()\n", "super()"),
        ("def g(x):\n    @exercise\n    def f():\n        '''D.'''\n        return x\n    return f\n", "inside a function"),
        ("@exercise\ndef f():\n    return 1\n", "no docstring"),
        ("@exercise\ndef f():\n    '''D.'''\n    raise NotImplementedError\n", "no answer"),
        ("@exercise\ndef f(:\n", "no Python"),
    ],
)
def test_an_answer_that_cannot_be_borrowed_is_refused_in_one_sentence(course, body, why):
    (course / "solutions/s99_bad.py").write_text(f"from kit.exercise import exercise\n\n\n{body}", "utf-8")
    done = python("tools/cut.py", cwd=course)
    assert done.returncode == 1 and why in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert not (course / "code/s99_bad.py").exists()


def test_the_linter_minds_nothing_in_a_fresh_cut_but_names_that_only_answers_use(fresh):
    pytest.importorskip("ruff", reason="ruff is not installed")
    files = sorted((fresh / "code").glob("s*.py"))
    done = run(sys.executable, "-m", "ruff", "check", "--no-cache", "--ignore", "F401", *files, cwd=fresh)
    assert done.returncode == 0, done.stdout

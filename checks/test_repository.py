"""The repository as a whole: every lesson has all its forms, and no file holds what should not be public."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from place import LESSONS, ROOT, cut

FORMS = (
    *("lessons/{}.md", "code/{}.py", "solutions/{}.py", "tests/test_{}.py"),
    *("notebooks/{}.ipynb", "quizzes/{}.json"),
)
MACHINE_PATH = re.compile(rb"(?<![\w.$~<>{}/-])/(?:home|root|Users|work|opt|tmp|private|mnt)/\w")
LARGEST = 4 * 2**20


def files() -> list[Path]:
    """What is committed or would be; everything but hidden folders where there is no git."""
    try:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_lesson_has_all_its_forms(lesson):
    missing = [form.format(lesson) for form in FORMS if not (ROOT / form.format(lesson)).exists()]
    assert not missing


def test_no_form_is_left_of_a_lesson_that_is_gone():
    for form in FORMS:
        folder, pattern = form.replace("{}", "s[0-9][0-9]_*").split("/")
        for path in (ROOT / folder).glob(pattern):
            stem = path.stem.removeprefix("test_")
            assert (ROOT / f"solutions/{stem}.py").exists(), f"{path.relative_to(ROOT)} belongs to no lesson"


def test_code_is_no_package():
    """`code` is a module of the standard library: a package of that name breaks pdb and pytest."""
    assert not (ROOT / "code/__init__.py").exists()


def test_the_kit_never_imports_a_lesson_at_its_top():
    for path in (ROOT / "code/kit").rglob("*.py"):
        for line in path.read_text("utf-8").splitlines():
            assert not re.match(r"(from|import) s\d\d_", line), f"{path.name}: {line}"


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_exercise_says_how_long_it_is(lesson):
    text = (ROOT / f"solutions/{lesson}.py").read_text("utf-8").splitlines()
    for exercise in cut.exercises(ROOT / f"solutions/{lesson}.py"):
        docstring = " ".join(text[max(0, exercise.start - 40) : exercise.start]).rpartition("@exercise")[2]
        assert re.search(r"Roughly \d+ lines?\b", docstring), (
            f"{exercise.name} does not say roughly how many lines it takes"
        )


def test_no_file_is_larger_than_four_mebibytes():
    large = [str(path.relative_to(ROOT)) for path in files() if path.stat().st_size > LARGEST]
    assert not large


def test_no_file_names_a_path_of_somebodys_machine():
    found = []
    for path in files():
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if path != Path(__file__) and MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {MACHINE_PATH.search(line)[0].decode()}")
    assert not found

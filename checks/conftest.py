"""Fixtures of the checks: copies of the course to work on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from place import LESSONS, copy_course, lacks, needs

SECONDS_PER_CHECK = 180
RUN_KERNELS = ("test_wrong_answers.py", "test_notebooks.py", "test_lessons.py")


def pytest_collection_modifyitems(items):
    missing = {lesson: lacks(lesson) for lesson in LESSONS}
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_PER_CHECK))
        lesson = lesson_of(item)
        if missing.get(lesson) and not os.environ.get("CI"):  # in CI it is an error
            item.add_marker(pytest.mark.skip(reason=f"{lesson} needs {missing[lesson]}"))
        elif "requirements-kernels.txt" in needs(lesson) and sys.platform != "linux" and item.path.name in RUN_KERNELS:
            item.add_marker(
                pytest.mark.skip(reason=f"{lesson} launches kernels, and Triton has no package for {sys.platform}")
            )


def lesson_of(item) -> str:
    """The lesson that a check is about, if it is about one."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = [value.parent.name if isinstance(value, Path) else value for value in values]
    return next((name for name in names if name in LESSONS), "")


@pytest.fixture(scope="session")
def fresh(tmp_path_factory) -> Path:
    """The course as a learner clones it. For reading and running only: a check that changes a file copies it first."""
    return copy_course(tmp_path_factory.mktemp("fresh") / "course")

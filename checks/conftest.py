"""Fixtures of the checks: copies of the course to work on."""

from __future__ import annotations

from pathlib import Path

import pytest
from place import copy_course

SECONDS_PER_CHECK = 180


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_PER_CHECK))


@pytest.fixture(scope="session")
def fresh(tmp_path_factory) -> Path:
    """The course as a learner clones it. For reading and running only: a check that changes a file copies it first."""
    return copy_course(tmp_path_factory.mktemp("fresh") / "course")

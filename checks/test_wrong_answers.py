"""Every wrong answer is caught by the lesson's tests, by the one it names, with a message that names the cause."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from place import LESSONS, ROOT, grade

AT_LEAST = {
    **{"s08_static_batching": 4, "s09_continuous_batching": 4, "s10_scheduler": 10, "s14_unified_scheduler": 12},
    **{"s17_triton_decode": 6, "s18_triton_prefill": 6},
}
FILES = sorted((ROOT / "checks/wrong_answers").glob("s*/*.py"))
SECONDS_PER_TEST = "10"  # some wrong answers never end


def constants(path: Path) -> dict[str, str]:
    """The docstring and the constants of a wrong answer."""
    tree = ast.parse(path.read_text("utf-8"))
    named = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)
    }
    return {"doc": ast.get_docstring(tree) or "", **named}


def label(path: Path) -> str:
    return f"{path.parent.name[:3]}-{path.stem}"


def on_trial(course: Path, path: Path, *options: str) -> dict:
    """What a lesson's tests say of a wrong answer."""
    test = f"tests/test_{path.parent.name}.py"
    return grade(course, test, "--solutions", "--timeout", SECONDS_PER_TEST, *options, COURSE_WRONG_ANSWER=str(path))


def by_test(verdict: dict) -> dict[str, list[str]]:
    """Name of a failing test -> its messages."""
    messages: dict[str, list[str]] = {}
    for failure in verdict["failed"]:
        messages.setdefault(failure["test"].partition("[")[0].rpartition("::")[2], []).append(failure["message"])
    return messages


@pytest.fixture(scope="module")
def verdicts(fresh, request) -> Iterator[dict[Path | str, Future[dict]]]:
    """What the named test says of each wrong answer, and all tests of the answers; two at a time. Only what is asked for."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    wanted = {subject for item in items for subject in item.callspec.params.values()}

    def trial(subject: Path | str) -> dict:
        if isinstance(subject, str):
            return grade(fresh, f"tests/test_{subject}.py", "--solutions")
        return on_trial(fresh, subject, "-k", constants(subject).get("CAUGHT_BY", "nothing"))

    with ThreadPoolExecutor(2) as workers:
        yield {subject: workers.submit(trial, subject) for subject in [*LESSONS, *FILES] if subject in wanted}
        workers.shutdown(cancel_futures=True)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_answers_pass(verdicts, lesson):
    verdict = verdicts[lesson].result()
    assert (verdict["failed"], verdict["todo"]) == ([], []) and verdict["passed"] > 0, verdict["output"]


@pytest.mark.parametrize("path", FILES, ids=label)
def test_a_wrong_answer_is_caught_by_the_test_that_it_names(fresh, verdicts, path):
    about = constants(path)
    assert {"CAUGHT_BY", "MESSAGE"} <= set(about) and about["doc"], "it needs a docstring, CAUGHT_BY and MESSAGE"
    messages = by_test(verdicts[path].result())
    if about["CAUGHT_BY"] not in messages:
        others = by_test(on_trial(fresh, path))
        raise AssertionError(f"{about['CAUGHT_BY']} lets it pass; caught by: {', '.join(others) or 'nobody'}")
    found = messages[about["CAUGHT_BY"]]
    assert any(about["MESSAGE"] in message for message in found), f"{about['MESSAGE']!r} is not in\n{found[0]}"


@pytest.mark.parametrize("lesson", LESSONS)
def test_there_are_enough_wrong_answers(lesson):
    count = sum(path.parent.name == lesson for path in FILES)
    assert count >= AT_LEAST.get(lesson, 4), f"{lesson} has {count} wrong answers"


def test_no_two_wrong_answers_share_a_misconception():
    docs = [constants(path)["doc"] for path in FILES]
    assert len(set(docs)) == len(docs)


def test_three_of_them_are_the_mystery_schedulers():
    marks = [constants(path).get("MYSTERY") for path in FILES if path.parent.name == "s10_scheduler"]
    assert sorted(mark for mark in marks if mark) == ["A", "B", "C"]

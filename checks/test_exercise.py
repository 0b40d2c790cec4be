"""kit.exercise and tests/conftest.py, on a course of one small lesson that has every kind of exercise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from place import ROOT, cut, grade, python

ANSWERS = '''"""A lesson with every kind of exercise."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from kit.exercise import exercise, summary

FACTOR = 3


def helper(x: int) -> int:
    return FACTOR * x


@exercise
def function(x: int, y: int = 2, *, z: int = 5) -> int:
    """A function of the module, with defaults."""
    return helper(x) + y * z


@dataclass(slots=True)
class Point:
    x: int

    @exercise
    def method(self) -> Point:
        """Makes another of its own class."""
        return Point(self.x + 1)

    @property
    @exercise
    def double(self) -> int:
        """A property."""
        return 2 * self.x

    @staticmethod
    @exercise
    def static(x: int = 7) -> int:
        """A static method."""
        return helper(x)

    @classmethod
    @exercise
    def make(cls, x: int) -> Point:
        """A class method."""
        return cls(x)

    @exercise
    def count(self, n: int) -> Iterator[int]:
        """A generator."""
        for i in range(n):
            yield self.x + i

    @exercise
    def nested(self, xs: list[int]) -> list[int]:
        """Helpers inside, which may close over the exercise's own names."""

        def add(x: int) -> int:
            return x + self.x

        # a comment that belongs to the body
        return [add(x) for x in xs] + sorted(xs, key=lambda x: -x * self.x)
        # and one below it


class Child(Point):
    @exercise
    def method(self) -> Point:
        """A method of the same name as its parent's."""
        return Child(Point.method(self).x * 10)


def main() -> None:
    p = Point(4)
    rows = [function(1), function(1, 1, z=1), p.method().x, p.double, Point.static(), Point.static(1), Point.make(9).x]
    rows += [*p.count(3), *p.nested([1, 2]), Child(1).method().x]
    same = type(p.method()) is Point and type(Child.make(1)) is Child and isinstance(Child(1).method(), Point)
    print(json.dumps({"rows": rows, "same": same, "copies": "s42_sample" in sys.modules}))
    print(summary("s42_sample"), file=sys.stderr)


if __name__ == "__main__":
    main()
'''
OUTPUT = {"rows": [13, 4, 5, 8, 21, 3, 9, 4, 5, 6, 5, 6, 2, 1, 20], "same": True, "copies": False}
NAMES = "function, method, double, static, make, count, nested, method"
OTHER = '''"""A second lesson, which builds on the first."""

from __future__ import annotations

from kit.exercise import exercise
from s42_sample import Point, function


@exercise
def again(x: int) -> int:
    """Uses the first lesson."""
    return function(x) + Point(x).double
'''


@pytest.fixture
def small(tmp_path) -> Path:
    """A course of two small lessons, cut."""
    for file in ("code/kit/__init__.py", "code/kit/exercise.py", "solutions/kit.py", "tools/cut.py", "tests/conftest.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "solutions/s42_sample.py").write_text(ANSWERS, "utf-8")
    (tmp_path / "solutions/s43_other.py").write_text(OTHER, "utf-8")
    assert python("tools/cut.py", cwd=tmp_path).returncode == 0
    return tmp_path


def solve(course: Path, name: str, body: str, lesson: str = "s42_sample") -> None:
    """Write an exercise in the learner's file: replace its one line."""
    file = course / f"code/{lesson}.py"
    before, mark, after = file.read_text("utf-8").partition(f"def {name}(")
    file.write_text(before + mark + after.replace("raise NotImplementedError", body, 1), "utf-8")


def write_tests(course: Path, lesson: str, text: str) -> str:
    (course / f"tests/test_{lesson}.py").write_text(text, "utf-8")
    return f"tests/test_{lesson}.py"


def test_an_unwritten_lesson_does_all_that_its_answers_do(small):
    answers, mine = python("solutions/s42_sample.py", cwd=small), python("code/s42_sample.py", cwd=small)
    assert json.loads(answers.stdout) == OUTPUT, answers.stderr
    assert json.loads(mine.stdout) == OUTPUT, mine.stderr


@pytest.mark.parametrize("body", ["pass", "...", ""])
def test_an_empty_body_is_as_unwritten_as_the_line_that_was_shipped(small, body):
    solve(small, "function", body)
    assert python("code/s42_sample.py", cwd=small).stderr.strip() == f"s42_sample: borrowed: {NAMES}"
    test = write_tests(
        small, "s42_sample", "from s42_sample import function\ndef test_x():\n    assert function(1) is None\n"
    )
    assert [todo["exercise"] for todo in grade(small, test)["todo"]] == ["function"]
    sample = next(e for e in cut.exercises(small / "code/s42_sample.py") if e.name == "function")
    assert not sample.written


def test_the_summary_names_what_is_borrowed_and_what_is_yours(small):
    assert python("solutions/s42_sample.py", cwd=small).stderr.strip() == ""
    assert python("code/s42_sample.py", cwd=small).stderr.strip() == f"s42_sample: borrowed: {NAMES}"
    solve(small, "function", "return 1")
    mine = python("code/s42_sample.py", cwd=small)
    assert mine.stderr.strip() == f"s42_sample: yours: function | borrowed: {NAMES.removeprefix('function, ')}"
    assert json.loads(mine.stdout)["rows"][0] == 1


def test_solutions_ignores_what_the_learner_wrote(small):
    solve(small, "function", "return 1")
    assert json.loads(python("code/s42_sample.py", "--solutions", cwd=small).stdout) == OUTPUT
    assert json.loads(python("code/s42_sample.py", cwd=small, COURSE_SOLUTIONS="1").stdout) == OUTPUT


def test_a_borrowed_exercise_costs_what_a_plain_function_costs(small):
    done = python(
        "-c",
        "import sys; sys.path.insert(0, 'code')\n"
        "from types import FunctionType\n"
        "import s42_sample as lesson\n"
        "for f in (lesson.function, lesson.Point.method, lesson.Point.double.fget, lesson.Point.make.__func__):\n"
        "    assert type(f) is FunctionType and f.__closure__ is None and not hasattr(f, '__wrapped__'), f\n"
        "    assert f.__globals__ is vars(lesson) and f.__doc__ and f.__module__ == 's42_sample', f\n"
        "    assert f.__code__.co_filename.replace('\\\\', '/').endswith('solutions/s42_sample.py'), f\n"
        "assert lesson.Point.method.__qualname__ == 'Point.method'\n",
        cwd=small,
    )
    assert done.returncode == 0, done.stderr


def test_a_learners_change_of_a_default_reaches_the_borrowed_body(small):
    file = small / "code/s42_sample.py"
    file.write_text(
        file.read_text("utf-8").replace("FACTOR = 3", "FACTOR = 5").replace("z: int = 5", "z: int = 6"), "utf-8"
    )
    assert json.loads(python(file, cwd=small).stdout)["rows"][0] == 5 * 1 + 2 * 6


def test_in_its_own_tests_an_unwritten_exercise_is_a_todo_that_nothing_swallows(small):
    test = write_tests(
        small,
        "s42_sample",
        "import pytest\n"
        "from hypothesis import given, strategies as st\n"
        "from s42_sample import Point, function\n"
        "def test_raises():\n    with pytest.raises(Exception):\n        function(1)\n"
        "def test_caught():\n    try:\n        function(1)\n    except Exception:\n        pass\n"
        "@given(st.integers())\ndef test_random(x):\n    function(x)\n"
        "@pytest.fixture(scope='module')\ndef point():\n    return Point(1).method()\n"
        "def test_fixture(point):\n    pass\n"
        "def test_fixture_again(point):\n    pass\n"
        "def test_nothing_borrowed():\n    assert Point(1).double == 2\n"
        "def test_given():\n    assert Point(1).x == 1\n",
    )
    result = grade(small, test)
    assert (result["passed"], result["failed"], len(result["todo"]), result["exit"]) == (1, [], 6, 1), result["output"]
    line = 1 + (small / "code/s42_sample.py").read_text("utf-8").splitlines().index("    raise NotImplementedError")
    assert f"TODO code/s42_sample.py:{line} function is not written yet   (3 tests wait for it)" in result["output"]
    assert result["output"].count("function is not written yet") == 1
    assert "Point.method is not written yet   (2 tests wait for it)" in result["output"]
    assert result["todo"][0] == {
        "test": f"{test}::test_raises",
        "where": f"code/s42_sample.py:{line}",
        "exercise": "function",
    }


def test_earlier_lessons_are_lent_unless_mine_is_asked_for(small):
    solve(small, "again", "return function(x)", "s43_other")
    test = write_tests(small, "s43_other", "from s43_other import again\ndef test_again():\n    assert again(1) == 13\n")
    lent = grade(small, test)
    assert lent["passed"] == 1 and lent["exit"] == 0, lent["output"]
    assert "lent from solutions/: s42_sample (--mine takes yours)" in lent["output"]
    solve(small, "function", "return 99")
    assert grade(small, test)["passed"] == 1
    mine = grade(small, test, "--mine")
    assert len(mine["failed"]) == 1 and "99 == 13" in mine["failed"][0]["message"], mine["output"]
    assert grade(small, test, "--solutions")["failed"][0]["message"].startswith("assert 15 == 13")


def test_each_test_module_has_lessons_of_its_own_also_inside_functions(small):
    solve(small, "again", "return function(x)", "s43_other")
    first = "import s42_sample\ndef test_strict():\n    import s42_sample as late\n    assert late is s42_sample\n    late.function(1)\n"
    second = (
        "import s42_sample, s43_other\ndef test_lent():\n    import s42_sample as late\n"
        "    assert late is s42_sample and late.function(1) == 13 and s43_other.again(1) == 13\n"
    )
    result = grade(small, write_tests(small, "s42_sample", first), write_tests(small, "s43_other", second))
    assert (result["passed"], result["failed"], len(result["todo"])) == (1, [], 1), result["output"]


def test_a_failure_shows_its_message_first_and_no_traceback(small):
    solve(small, "function", "return helper(x) // 0")
    test = write_tests(
        small,
        "s42_sample",
        "from s42_sample import function\nclass Mismatch(AssertionError):\n    pass\n"
        "def test_error():\n    function(1)\ndef test_told():\n    raise Mismatch('step 3\\n  expected  A1')\n",
    )
    result = grade(small, test)
    error, told = (failure["message"] for failure in result["failed"])
    assert error.splitlines()[0].startswith("ZeroDivisionError: ")
    assert error.splitlines()[1].startswith("  in code/s42_sample.py:") and "return helper(x) // 0" in error
    assert told == "step 3\n  expected  A1"
    assert "Traceback" not in result["output"] and len(result["output"].splitlines()) < 15, result["output"]


def test_a_lesson_that_cannot_be_imported_is_one_line_and_leaves_the_others_graded(small):
    (small / "code/s42_sample.py").write_text("x = 1\ndef broken(:\n", "utf-8")
    solve(small, "again", "return 1", "s43_other")
    tests = [
        write_tests(small, "s42_sample", "from s42_sample import x\ndef test_x():\n    pass\n"),
        write_tests(small, "s43_other", "from s43_other import again\ndef test_again():\n    assert again(1) == 1\n"),
    ]
    result = grade(small, *tests)
    assert result["passed"] == 1 and result["exit"] == 1, result["output"]
    (failure,) = result["failed"]
    assert failure["where"] == "code/s42_sample.py:2" and failure["message"].startswith("SyntaxError: ")
    assert "INTERNALERROR" not in result["output"] and "Traceback" not in result["output"]


LOOPS = {
    "plain": "while True:\n        pass",
    "the alarm swallowed again and again": (
        "while True:\n        try:\n            while True: pass\n        except:\n            pass"
    ),
    "the alarm swallowed once": "try:\n        while True: pass\n    except:\n        return 13",
}
TWO_TESTS = (
    "from hypothesis import given, strategies as st\nfrom s42_sample import function\n"
    "def test_first():\n    pass\n"
    "def test_plain():\n    function(1)\n@given(st.integers())\ndef test_random(x):\n    function(x)\n"
)


@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("word", ["plain", "random"])
def test_a_loop_without_end_is_named_and_ends_the_run(small, body, word):
    solve(small, "function", body)
    test = write_tests(small, "s42_sample", TWO_TESTS + "def test_last():\n    pass\n")
    result = grade(small, test, "--timeout", "0.5", "-k", f"first or {word} or last", timeout=20)
    (failure,) = result["failed"]
    assert failure["test"].endswith(f"::test_{word}") and failure["where"].startswith("code/s42_sample.py:")
    assert failure["message"].startswith("function() made no progress for 0.5 s: ")
    assert "the other tests would hang too" in failure["message"]
    assert (result["passed"], result["not_run"], result["exit"]) == (1, 1, 1), result["output"]
    assert "INTERNALERROR" not in result["output"] and "Traceback" not in result["output"], result["output"]


def test_a_loop_without_end_is_named_without_signals_too(small):
    solve(small, "function", LOOPS["plain"])
    test = write_tests(small, "s42_sample", TWO_TESTS)
    result = grade(small, test, "--timeout", "0.5", "--timeout-method", "thread", timeout=20)
    (failure,) = result["failed"]
    assert failure["message"].startswith("function() made no progress for 0.5 s: ") and result["passed"] == 1
    assert failure["where"].startswith("code/s42_sample.py:") and failure["message"] in result["output"]


def test_a_loop_without_end_at_import_is_named(small):
    file = small / "code/s42_sample.py"
    file.write_text(
        file.read_text("utf-8") + "\nwhile True:\n    try:\n        helper(1)\n    except:\n        pass\n", "utf-8"
    )
    result = grade(small, write_tests(small, "s42_sample", TWO_TESTS), "--timeout", "0.5", timeout=20)
    (failure,) = result["failed"]
    assert failure["message"].startswith("the import of the lesson made no progress for 0.5 s: ")
    assert failure["where"].startswith("code/s42_sample.py:")


def test_a_name_that_the_tests_import_and_the_lesson_lacks_is_one_line(small):
    file = small / "code/s42_sample.py"
    file.write_text(file.read_text("utf-8").replace("class Child", "class Kid"), "utf-8")
    result = grade(
        small, write_tests(small, "s42_sample", "from s42_sample import Child, Point\ndef test_x():\n    pass\n")
    )
    (failure,) = result["failed"]
    assert failure["where"] == "code/s42_sample.py"
    assert failure["message"] == "Child is gone: the tests import it, put it back"
    assert "Traceback" not in result["output"]


def test_a_test_file_that_cannot_be_collected_stands_among_the_verdicts(small):
    result = grade(small, write_tests(small, "s42_sample", "import s42_sample\ns42_sample.Point.nowhere\n"))
    (failure,) = result["failed"]
    assert "has no attribute 'nowhere'" in failure["message"]


def test_a_wrong_answer_replaces_methods_and_functions_of_the_lesson_under_test(small):
    wrong = small / "wrong/s42_sample/misread.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text(
        '"""A misconception."""\nCAUGHT_BY = "test_all"\nMESSAGE = "?"\n'
        "def function(x, y=100, *, z=1):\n    return helper(x) + y + z\n"
        "class Point:\n    def method(self):\n        return Point(self.x + 1000)\n",
        "utf-8",
    )
    test = write_tests(
        small,
        "s42_sample",
        "import s42_sample as m\ndef test_all():\n"
        "    assert (m.function(1), m.Point(1).method().x, m.Point(2).double) == (104, 1001, 4)\n"
        "    assert type(m.Point(1).method()) is m.Point and m.Child(1).method().x == 10010\n",
    )
    assert grade(small, test, "--solutions")["passed"] == 0
    result = grade(small, test, "--solutions", COURSE_WRONG_ANSWER=str(wrong))
    assert result["passed"] == 1, result["output"]
    other = write_tests(small, "s43_other", "from s43_other import again\ndef test_again():\n    assert again(1) == 15\n")
    assert grade(small, other, "--solutions", COURSE_WRONG_ANSWER=str(wrong))["passed"] == 1

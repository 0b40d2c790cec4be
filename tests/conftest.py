"""Which lesson a test grades, and how its verdict reads.

`pytest` grades code/: the lesson of a test file (tests/test_s10_scheduler.py: s10_scheduler) comes from there with nothing
borrowed, the lessons that it builds on are lent from solutions/. `--mine` takes those from code/ too, `--solutions` takes
everything from solutions/. Each test module gets fresh lesson modules of its own, also for imports inside functions.

Environment: COURSE_WRONG_ANSWER, a file to graft onto its lesson (kit.exercise.graft). COURSE_RESULT, a file to write
the verdicts to, as JSON. COURSE_THOROUGH=1: ten times the random workloads.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import linecache
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
LESSON = re.compile(r"s\d\d_\w+")
THOROUGH = os.environ.get("COURSE_THOROUGH") == "1"
SECONDS_PER_TEST = 50 if THOROUGH else 5  # the slowest takes a fraction of a second
KERNELS_TAKE = 4  # times as much: Triton's interpreter needs milliseconds for a line
AGAIN = 0.1  # seconds until the next alarm, where a bare `except:` has swallowed one
ALARMS = 20  # with so many swallowed, the process is ended

sys.path.insert(0, str(ROOT / "code"))  # for kit alone: the finder below is asked first for every lesson

from kit import exercise  # noqa: E402
from kit.exercise import NotWritten  # noqa: E402

try:
    import hypothesis
except ImportError:
    pass  # a test that needs it says so itself
else:
    hypothesis.settings.register_profile(
        "course",
        derandomize=True,
        deadline=None,
        database=None,
        max_examples=400 if THOROUGH else 40,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[phase for phase in hypothesis.Phase if phase.name != "explain"],
    )
    hypothesis.settings.load_profile("course")


try:
    from pytest_timeout import is_debugging
except ImportError:  # without it there is no time limit either

    def is_debugging() -> bool:
        return False


class TooSlow(BaseException):
    """A test ran into its time limit. Not an Exception, or hypothesis would take it for a bug and try to shrink it."""


# Which file a lesson comes from


class Lessons(importlib.abc.MetaPathFinder):
    """Finds sNN_name for the test module that is being collected or run, and keeps the modules of each one apart."""

    def __init__(self) -> None:
        self.mine = self.solutions = False
        self.under_test = ""
        self.lent: set[str] = set()
        self._sets: dict[Path, dict[str, ModuleType]] = {}
        self._current: Path | None = None

    def activate(self, test_file: Path) -> None:
        """From here on the lesson modules are those of `test_file`."""
        if test_file == self._current:
            return
        loaded = {name: module for name, module in sys.modules.items() if self._is_ours(name, module)}
        if self._current is not None:
            self._sets[self._current] = loaded
        for name in loaded:
            del sys.modules[name]
        sys.modules.update(self._sets.get(test_file, {}))
        self._current = test_file
        self.under_test = lesson_of(test_file)
        exercise.strict.clear()
        if not self.solutions:
            exercise.strict.add(self.under_test)

    def find_spec(self, name, path=None, target=None):
        if not LESSON.fullmatch(name):
            return None
        graded = name == self.under_test or self.mine
        folder = "code" if graded and not self.solutions else "solutions"
        file = ROOT / folder / f"{name}.py"
        if not file.exists():
            return None
        if not graded and not self.solutions:
            self.lent.add(name)
        return importlib.util.spec_from_file_location(name, file, loader=GraftingLoader(name, str(file)))

    @staticmethod
    def _is_ours(name: str, module: ModuleType) -> bool:
        """A lesson, or a helper beside the tests that may have imported one."""
        file = getattr(module, "__file__", None) or ""
        helper = Path(file).parent == TESTS and not name.startswith("test_") and not name.endswith("conftest")
        return LESSON.fullmatch(name) is not None or helper


class GraftingLoader(importlib.machinery.SourceFileLoader):
    """Loads a lesson and puts the wrong answer that is on trial into it."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        wrong_answer = os.environ.get("COURSE_WRONG_ANSWER")
        if wrong_answer and module.__name__ == lessons.under_test == Path(wrong_answer).resolve().parent.name:
            exercise.graft(Path(wrong_answer).resolve(), vars(module))


lessons = Lessons()


def lesson_of(test_file: Path) -> str:
    return test_file.stem.removeprefix("test_")


def pytest_addoption(parser):
    group = parser.getgroup("course")
    group.addoption("--solutions", action="store_true", help="grade solutions/ instead of code/")
    group.addoption("--mine", action="store_true", help="take earlier lessons from code/ too, not from solutions/")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    option = config.option
    lessons.mine, lessons.solutions = option.mine, option.solutions
    option.continue_on_collection_errors = True  # one broken lesson leaves the others graded
    if getattr(option, "timeout", "absent") is None:
        option.timeout = SECONDS_PER_TEST
    if option.reportchars == "fE":
        option.reportchars = ""  # the messages are short: no second list of them
    sys.meta_path.insert(0, lessons)


def pytest_unconfigure(config):
    sys.meta_path.remove(lessons)


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector):
    """Before a test module: its own lesson modules; a lesson that can't be imported is one red line."""
    if not isinstance(collector, pytest.Module):
        return None
    lessons.activate(collector.path)
    if not LESSON.fullmatch(lessons.under_test):
        return None
    if missing := no_torch(lessons.under_test):
        where = (str(collector.path), 0, f"{lessons.under_test} {missing}")
        return pytest.CollectReport(collector.nodeid, "skipped", where, [])
    option = collector.config.option
    alarm = Alarm(getattr(option, "timeout", 0) or 0, collector.nodeid, lambda: None)
    alarm.set()
    try:
        module = importlib.import_module(lessons.under_test)
        missing = [name for name in imported_names(collector.path, lessons.under_test) if not hasattr(module, name)]
        if not missing:
            return None
        where, message = short(module.__file__ or ""), f"{', '.join(missing)} is gone: the tests import it, put it back"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where, message = locate(error), headline(error)
        if isinstance(error, SyntaxError) and error.filename:
            where = f"{short(error.filename)}:{error.lineno}" if error.lineno else short(error.filename)
    finally:
        alarm.cancel()
    where = where or f"{'solutions' if lessons.solutions else 'code'}/{lessons.under_test}.py"
    result.failed.append({"test": collector.nodeid, "where": where, "message": message})
    return pytest.CollectReport(collector.nodeid, "failed", f"{where} {message}", [])


@pytest.hookimpl(wrapper=True)
def pytest_collectreport(report):
    """Whatever else a test module could not be collected for stands among the verdicts too."""
    if report.failed and all(report.nodeid != failure["test"] for failure in result.failed):
        result.failed.append({"test": report.nodeid, "where": "", "message": report.longreprtext.strip()})
    return (yield)


def no_torch(lesson: str) -> str:
    """Why a lesson on kernels can't be imported here, if it can't. Torch is loaded outside of the time limit: it takes seconds."""
    return importlib.import_module("kit.gpu").lacking(kernels=False) if has_kernels(lesson) else ""


def has_kernels(lesson: str) -> bool:
    file = ROOT / "code" / f"{lesson}.py"
    return file.exists() and "from kit.gpu import" in file.read_text("utf-8", "replace")


def imported_names(test_file: Path, lesson: str) -> list[str]:
    """What a test file imports from its lesson by name."""
    nodes = ast.parse(test_file.read_bytes()).body
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == lesson]
    return [alias.name for node in imports for alias in node.names if alias.name != "*"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    lessons.activate(item.path)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Let a fixture remember that it met an unwritten exercise; pytest itself only does so for an Exception."""
    try:
        return (yield)
    except (NotWritten, TooSlow) as error:
        fixturedef.cached_result = (None, fixturedef.cache_key(request), (error, error.__traceback__))
        raise


# How a verdict reads


class Result:
    """What COURSE_RESULT is written from."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[dict[str, str]] = []
        self.todo: list[dict[str, str]] = []
        self.not_run = 0

    def write(self) -> None:
        if target := os.environ.get("COURSE_RESULT"):
            Path(target).write_text(json.dumps(vars(self), indent=1) + "\n", "utf-8")


result = Result()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    alarm = getattr(item, "alarm", None)
    rang = alarm.error if alarm is not None and not item.session.shouldfail else None
    if rang is not None:
        alarm.cancel()
        report.outcome = "failed"  # also where a bare `except:` has swallowed the alarm and the test went on
        item.session.shouldfail = "a test made no progress: stop, for the other tests would hang too"
    elif report.when == "call" and report.passed:
        result.passed += 1
    if rang is None and (call.excinfo is None or report.outcome == "skipped"):
        return report
    error = in_kernel(call.excinfo.value) if call.excinfo is not None else None
    if rang is not None and not isinstance(error, TooSlow):
        error = rang
    todo = not_written(error)
    if todo is not None:
        where, _, name = str(todo).removesuffix(" is not written yet").partition(" ")
        result.todo.append({"test": item.nodeid, "where": where, "exercise": name})
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, str(todo))
        report.todo = str(todo)
    elif report.failed:
        message = explain(error)
        # the message of a test that hung comes first: it is why the others were not run
        result.failed.insert(
            0 if rang else len(result.failed), {"test": item.nodeid, "where": locate(error), "message": message}
        )
        if item.config.option.tbstyle == "auto":
            report.longrepr = message
    return report


def in_kernel(error: BaseException) -> BaseException:
    """What went wrong inside a kernel, out of the errors in which Triton's interpreter wraps it, one for each call."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


def not_written(error: BaseException | None) -> NotWritten | None:
    """The unwritten exercise behind an exception, also where a library wrapped it."""
    while error is not None:
        if isinstance(error, NotWritten):
            return error
        for inner in getattr(error, "exceptions", ()):
            if (found := not_written(inner)) is not None:
                return found
        error = error.__cause__ or error.__context__
    return None


def explain(error: BaseException) -> str:
    """The message first, then where it happened, innermost call first; nothing of kit and the libraries."""
    lines = [headline(error)]
    lines += [note for note in getattr(error, "__notes__", ()) if not note.startswith("You can reproduce")]
    if type(error).__name__ != "Mismatch":  # that one says it all
        calls = list(own_calls(error))
        lines += [f"  {'in' if i == 0 else 'called from'} {where}   {code}" for i, (where, code) in enumerate(calls[:4])]
    return "\n".join(lines)


def headline(error: BaseException) -> str:
    """What went wrong, without a traceback."""
    text = str(error)
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    if isinstance(error, (AssertionError, TooSlow, pytest.fail.Exception)):
        return text or "an assertion failed"
    line = traceback.format_exception_only(type(error), error)[0].strip()  # with Python's own "Did you mean"
    return line.removeprefix(f"{type(error).__module__}.")


def own_calls(error: BaseException) -> Iterator[tuple[str, str]]:
    """(place, source line) of the lessons and tests that led to an error, innermost first."""
    inner = ""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if is_own(path):
            if name != inner:  # hypothesis wraps a test in a function of the same name
                yield f"{short(path)}:{line} {name}", linecache.getline(str(path), line).strip()
            inner = name


def is_own(path: Path) -> bool:
    """A lesson's or a test's."""
    return bool(LESSON.fullmatch(path.stem) or path.name.startswith("test_")) and path.is_relative_to(ROOT)


def locate(error: BaseException) -> str:
    """`file:line` of the innermost lesson or test; empty if the error came from neither."""
    return next((where.partition(" ")[0] for where, _ in own_calls(error)), "")


def short(path: str | Path) -> str:
    path = Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def pytest_report_teststatus(report, config):
    if hasattr(report, "todo"):
        return "todo", "T", ("TODO", {"yellow": True})
    return None


def pytest_terminal_summary(terminalreporter):
    waiting: dict[str, int] = {}
    for entry in result.todo:
        text = f"TODO {entry['where']} {entry['exercise']} is not written yet"
        waiting[text] = waiting.get(text, 0) + 1
    if waiting:
        terminalreporter.ensure_newline()
    for text in sorted(waiting, key=place):
        tests = f"{waiting[text]} test{'s wait' if waiting[text] > 1 else ' waits'} for it"
        terminalreporter.write_line(f"{text}   ({tests})", yellow=True)
    if lessons.lent:
        terminalreporter.write_line(f"lent from solutions/: {', '.join(sorted(lessons.lent))} (--mine takes yours)")


def place(todo: str) -> tuple[str, int]:
    """The key that sorts TODO lines from top to bottom of a file."""
    file, _, line = todo.split()[1].partition(":")
    return file, int(line or 0)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.OK and result.todo:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.shouldfail:
        result.not_run = len(session.items) - result.passed - len(result.failed) - len(result.todo)
    result.write()


# The time limit of pytest-timeout, raised as something that hypothesis lets through


class Alarm:
    """Raises TooSlow in code that has run for `seconds`, and again: a learner's bare `except:` may swallow one.

    It only rings while a lesson or a test is on the stack, never inside pytest. Where all alarms are swallowed, or where
    there are no signals (Windows), the verdict is written and the process ends.
    """

    def __init__(self, seconds: float, nodeid: str, before_exit: Callable[[], object]):
        self.seconds, self.nodeid, self.before_exit = seconds, nodeid, before_exit
        self.error: TooSlow | None = None
        self.rung = 0
        self.thread: threading.Timer | None = None

    def set(self, signals: bool = hasattr(signal, "SIGALRM")) -> None:
        self.main = threading.get_ident()
        if not self.seconds:
            return
        if signals and threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGALRM, self.ring)
            signal.setitimer(signal.ITIMER_REAL, self.seconds, AGAIN)
        else:
            self.thread = threading.Timer(self.seconds, lambda: self.give_up(sys._current_frames().get(self.main)))
            self.thread.daemon = True
            self.thread.start()

    def cancel(self) -> None:
        if self.thread is not None:
            self.thread.cancel()
        elif self.seconds:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self.before)
        self.seconds = 0

    def ring(self, signum: int, frame: FrameType | None) -> None:
        calls = self.own_frames(frame)
        if not calls or not self.seconds or is_debugging():
            return
        self.rung += 1
        if self.rung > ALARMS:
            self.give_up(frame)
        error = TooSlow(self.text(calls))
        self.error = self.error or error
        raise error

    def text(self, calls: list[FrameType]) -> str:
        lesson = [frame for frame in calls if Path(frame.f_code.co_filename).stem == lessons.under_test]
        name = lesson[-1].f_code.co_name if lesson else ""
        what = "the import of the lesson" if name == "<module>" else f"{name}()" if name else "the test"
        return (
            f"{what} made no progress for {self.seconds:g} s: probably a loop whose condition never changes. "
            "Stop: the other tests would hang too"
        )

    @staticmethod
    def own_frames(frame: FrameType | None) -> list[FrameType]:
        """The frames of lessons and tests, innermost first."""
        found = []
        while frame is not None:
            if is_own(Path(frame.f_code.co_filename)):
                found.append(frame)
            frame = frame.f_back
        return found

    def give_up(self, frame: FrameType | None) -> None:
        """Say the verdict and end the process, for no exception gets through."""
        calls = self.own_frames(frame)
        if not calls or is_debugging():
            return
        where = f"{short(calls[0].f_code.co_filename)}:{calls[0].f_lineno}"
        message = self.text(calls)
        result.failed.insert(0, {"test": self.nodeid, "where": where, "message": message})
        result.write()
        self.before_exit()
        print(f"\nFAILED {self.nodeid}\n{where} {message}", file=sys.__stderr__, flush=True)
        os._exit(pytest.ExitCode.TESTS_FAILED)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    if not item.path.is_relative_to(TESTS):
        return None  # pytest-timeout's own way
    capture = item.config.pluginmanager.getplugin("capturemanager")
    seconds = settings.timeout or 0
    if seconds == SECONDS_PER_TEST and has_kernels(lessons.under_test):
        seconds *= KERNELS_TAKE
    item.alarm = Alarm(seconds, item.nodeid, lambda: capture and capture.suspend_global_capture(in_=True))
    item.alarm.set(settings.method == "signal")
    item.cancel_timeout = item.alarm.cancel
    return True

"""Exercises: what happens when the body is still missing.

In a script, notebook or simulator an unwritten exercise borrows its body from solutions/. In the tests of its own lesson
nothing is borrowed: there it raises `NotWritten`, which pytest shows as a yellow TODO. Either way the decision is made
once, at decoration; a call costs what a plain function costs.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"

strict: set[str] = set()  # file names without suffix, e.g. "s10_scheduler": lessons under test
pieces: dict[tuple[str, str], str] = {}  # (lesson, qualified name) -> "yours", "borrowed", "unwritten" or "given"


class NotWritten(BaseException):
    """An exercise was called that nobody has written. Not an Exception, so no `pytest.raises` takes it for an answer."""


def exercise(function: Callable) -> Callable:
    """Mark what the learner writes. Innermost decorator: below `@property`, `@classmethod` and `@staticmethod`."""
    if not isinstance(function, FunctionType):
        return _kernel_exercise(function)
    path = Path(function.__code__.co_filename).resolve()
    lesson, name = path.stem, function.__qualname__
    written = is_written(function)
    if path.parent == SOLUTIONS:
        pieces[lesson, name] = "given"
    elif lesson in strict:
        pieces[lesson, name] = "yours" if written else "unwritten"
        return function if written else _raiser(function, path)
    elif written and not wants_solutions():
        pieces[lesson, name] = "yours"
    else:
        pieces[lesson, name] = "borrowed"
        return _borrow(function, SOLUTIONS / path.name)
    return function


def _kernel_exercise(kernel: Any) -> Any:
    """The same for a Triton kernel or a piece of one. Its body can't be lent: Triton reads source, so the whole object is."""
    function = kernel.fn
    path = Path(function.__code__.co_filename).resolve()
    lesson, name = path.stem, function.__qualname__
    written = is_written(function)
    if path.parent == SOLUTIONS:
        pieces[lesson, name] = "given"
    elif lesson in strict:
        pieces[lesson, name] = "yours" if written else "unwritten"
        return kernel if written else _raiser(function, path)
    elif written and not wants_solutions():
        pieces[lesson, name] = "yours"
    else:
        pieces[lesson, name] = "borrowed"
        return getattr(_answers(lesson), name)
    return kernel


@lru_cache
def _answers(lesson: str) -> ModuleType:
    """The lesson in solutions/, under a name of its own beside the learner's."""
    spec = importlib.util.spec_from_file_location(f"answers_to_{lesson}", SOLUTIONS / f"{lesson}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_written(function: Callable) -> bool:
    """False while the body is still the `raise NotImplementedError` that the course ships."""
    code = function.__code__
    return code.co_code != _blank.__code__.co_code or code.co_names != _blank.__code__.co_names


def wants_solutions() -> bool:
    return "--solutions" in sys.argv or os.environ.get("COURSE_SOLUTIONS") == "1"


def summary(lesson: str) -> str:
    """One line: which pieces of a lesson are the learner's and which are borrowed; empty in solutions/."""
    groups: dict[str, list[str]] = {}
    for (stem, name), state in pieces.items():
        if stem == lesson:
            groups.setdefault(state, []).append(name.rpartition(".")[2])
    parts = [f"{state}: {', '.join(groups[state])}" for state in ("yours", "borrowed") if state in groups]
    return f"{lesson}: " + " | ".join(parts) if parts else ""


def _blank() -> None:
    """The body of an unwritten exercise."""
    raise NotImplementedError


def _borrow(function: FunctionType, answers: Path) -> Callable:
    """The answer's code over the learner's own globals, so that no class exists twice, also under `__main__`."""
    code = _module_code(str(answers)) if answers.exists() else None
    for part in function.__qualname__.split("."):
        code = next((c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == part), None) if code else None
    if code is None or code.co_freevars:
        return _raiser(
            function, Path(function.__code__.co_filename), "has no answer in solutions/ to borrow: was it renamed?"
        )
    borrowed = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    for attribute in ("__kwdefaults__", "__annotations__", "__qualname__", "__doc__", "__module__"):
        setattr(borrowed, attribute, getattr(function, attribute))
    return borrowed


@lru_cache
def _module_code(path: str) -> CodeType:
    return compile(Path(path).read_text("utf-8"), path, "exec")


def _raiser(function: FunctionType, path: Path, why: str = "is not written yet") -> Callable:
    line = max(line for *_, line in function.__code__.co_lines() if line)  # the `raise` that is to be replaced
    where = f"{path.parent.name}/{path.name}:{line} {function.__qualname__}"

    def not_written(*args: object, **kwargs: object) -> None:
        raise NotWritten(f"{where} {why}")

    not_written.__doc__, not_written.__qualname__ = function.__doc__, function.__qualname__
    return not_written


def graft(path: Path, namespace: dict) -> str:
    """Put the methods and functions of a wrong answer into a lesson's `namespace`; returns the file's docstring.

    A wrong answer is a file of classes with only the methods that it changes (or of plain functions), written as if it
    stood inside the lesson.
    """
    scope = dict(namespace)
    before = {id(value) for value in scope.values()}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), scope)

    def at_home(function: FunctionType) -> FunctionType:
        moved = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
        moved.__kwdefaults__ = function.__kwdefaults__
        return moved

    for name, value in scope.items():
        if name not in namespace or id(value) in before:
            continue
        if isinstance(value, FunctionType):
            namespace[name] = at_home(value)
        elif hasattr(value, "fn"):  # a Triton kernel
            namespace[name] = value
        elif isinstance(value, type):
            for attribute, member in vars(value).items():
                if isinstance(member, FunctionType):
                    setattr(namespace[name], attribute, at_home(member))
    return scope["__doc__"] or ""

"""Exercises: what happens when the body is still missing.

In a script, notebook or simulator an unwritten exercise borrows its body from solutions/. In the tests of its own lesson
nothing is borrowed: there it raises `NotWritten`, which pytest shows as a yellow TODO. Either way the decision is made
once, at decoration; a call costs what a plain function costs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"

Marked = TypeVar("Marked")  # a function or a kernel

strict: set[str] = set()  # file names without suffix, e.g. "s10_scheduler": lessons under test
pieces: dict[tuple[str, str], str] = {}  # (lesson, qualified name) -> "yours", "borrowed", "unwritten" or "given"


class NotWritten(BaseException):
    """An exercise was called that nobody has written. Not an Exception, so no `pytest.raises` takes it for an answer."""


def exercise(marked: Marked) -> Marked:
    """Mark what the learner writes. Innermost decorator: below `@property`, `@classmethod` and `@staticmethod`.

    A Triton kernel, or a piece of one, is an exercise like any other: there it stands above `@jit`, of kit.gpu.
    """
    function = _function(marked)
    path = Path(function.__code__.co_filename).resolve()
    lesson, name = path.stem, function.__qualname__
    written = is_written(function)
    if path.parent == SOLUTIONS:
        pieces[lesson, name] = "given"
    elif lesson in strict:
        pieces[lesson, name] = "yours" if written else "unwritten"
        return marked if written else _raiser(marked, path)
    elif written and not wants_solutions():
        pieces[lesson, name] = "yours"
    else:
        pieces[lesson, name] = "borrowed"
        return _borrow(marked, SOLUTIONS / path.name)
    return marked


class UnwrittenKernel:
    """Stands where a kernel, or a piece of one, is still missing: called or launched, it raises NotWritten."""

    def __init__(self, raiser: Callable) -> None:
        self.fn = raiser

    def __call__(self, *args: object, **kwargs: object) -> None:
        self.fn()

    def __getitem__(self, grid: object) -> Callable:
        return self


def ask_for_unwritten(function: FunctionType) -> None:
    """NotWritten if the code of a kernel names a piece, or one of its pieces does, that is not written.

    kit.gpu asks before each launch. The interpreter would come to the piece by itself; a compiler only says that it can't
    compile such a thing.
    """
    asked, ahead = {function}, [function]
    while ahead:
        now = ahead.pop(0)
        for name in now.__code__.co_names:
            piece = now.__globals__.get(name)
            if isinstance(piece, UnwrittenKernel):
                piece()
            inner = getattr(piece, "fn", None)
            if isinstance(inner, FunctionType) and inner not in asked:
                asked.add(inner)
                ahead.append(inner)


def _function(marked: Any) -> FunctionType:
    """The function behind a mark: Triton keeps that of a kernel as its `fn`."""
    return marked if isinstance(marked, FunctionType) else marked.fn


def is_written(function: Callable) -> bool:
    """False while the body is still the `raise NotImplementedError` that the course ships, or nothing: `pass`, a docstring."""
    code, blank = function.__code__, _blank.__code__
    if code.co_code == _nothing.__code__.co_code and set(code.co_consts) <= {function.__doc__, None}:
        return False
    return code.co_code != blank.co_code or code.co_names != blank.co_names


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


def _nothing() -> None:
    """The body of one whose line was taken out, and nothing written in its place."""


def _borrow(marked: Any, answers: Path) -> Any:
    """The answer's code over the learner's own globals, so that no class exists twice, also under `__main__`.

    Triton reads a kernel's source where its code comes from, and looks up what it calls in its globals: the same will do.
    """
    function = _function(marked)
    code = _module_code(str(answers)) if answers.exists() else None
    for part in function.__qualname__.split("."):
        code = next((c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == part), None) if code else None
    if code is None or code.co_freevars:
        path = Path(function.__code__.co_filename)
        return _raiser(marked, path, "has no answer in solutions/ to borrow: was it renamed?")
    borrowed = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    for attribute in ("__kwdefaults__", "__annotations__", "__qualname__", "__doc__", "__module__"):
        setattr(borrowed, attribute, getattr(function, attribute))
    return _like(marked, borrowed)


def _like(marked: Any, function: FunctionType) -> Any:
    """`function` as a kernel where `marked` is one."""
    if isinstance(marked, FunctionType):
        return function
    from kit.gpu import jit

    return jit(function)


@lru_cache
def _module_code(path: str) -> CodeType:
    return compile(Path(path).read_text("utf-8"), path, "exec")


def _raiser(marked: Any, path: Path, why: str = "is not written yet") -> Any:
    function = _function(marked)
    line = max(line for *_, line in function.__code__.co_lines() if line)  # the `raise` that is to be replaced
    where = f"{path.parent.name}/{path.name}:{line} {function.__qualname__}"

    def not_written(*args: object, **kwargs: object) -> None:
        raise NotWritten(f"{where} {why}")

    not_written.__doc__, not_written.__qualname__ = function.__doc__, function.__qualname__
    return not_written if marked is function else UnwrittenKernel(not_written)


def graft(path: Path, namespace: dict) -> str:
    """Put the methods and functions of a wrong answer into a lesson's `namespace`; returns the file's docstring.

    A wrong answer is a file of classes with only the methods that it changes (or of functions and kernels), written as if
    it stood inside the lesson.
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
        if isinstance(getattr(value, "fn", value), FunctionType):  # a function, or a Triton kernel
            namespace[name] = _like(value, at_home(_function(value)))
        elif isinstance(value, type):
            for attribute, member in vars(value).items():
                if isinstance(member, FunctionType):
                    setattr(namespace[name], attribute, at_home(member))
    return scope["__doc__"] or ""

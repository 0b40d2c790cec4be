"""torch and Triton for the lessons on kernels: compiled where there is a GPU, in Triton's interpreter where there is none.

`from kit.gpu import DEVICE, jit, lacking, need, tl, torch, triton`. Without Triton (macOS, Windows) or torch the import
works all the same: the names are None, `jit` leaves a kernel a function that nobody may launch, `lacking` and `need` say
what is missing. Tests and scripts make their tensors on DEVICE, and so run compiled where they can.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from kit import exercise, reach
from kit.errors import CourseError

torch: Any = None
triton: Any = None
tl: Any = None

with suppress(ImportError):
    torch = import_module("torch")

HAS_GPU = torch is not None and torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # a * b + c is one instruction; later versions want it said

with suppress(ImportError):
    tl = import_module("triton.language")
    triton = import_module("triton")

INTERPRETED = triton is not None and bool(triton.knobs.runtime.interpret)
if INTERPRETED:
    reach.watch()
DEVICE = "cuda" if HAS_GPU and triton is not None and not INTERPRETED else "cpu"


def jit(function: Callable) -> Any:
    """`triton.jit`, or the function itself where there is no Triton. To launch it asks for pieces that are not written yet."""
    if triton is None:
        return function
    kernel = triton.jit(function)

    def before(*args: Any, **kwargs: Any) -> None:
        if exercise.strict:
            exercise.ask_for_unwritten(kernel.fn)
        if INTERPRETED:
            reach.launched(kernel.arg_names, args, kwargs)

    kernel.add_pre_run_hook(before)
    return kernel


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel, to be looked at or to be made again."""

    name: str
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]

    def again(self) -> None:
        self.kernel[self.grid](*self.args, **self.constants)


def launches(module: ModuleType, function: Callable, *args: Any, **options: Any) -> list[Launch]:
    """What `function` of a lesson launches of the lesson's kernels (its names that end in _kernel), none of which runs."""
    kernels = {name: value for name, value in vars(module).items() if name.endswith("_kernel")}
    found: list[Launch] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Callable:
            return lambda *a, **constants: found.append(Launch(self.name, kernels[self.name], grid, a, constants))

    vars(module).update({name: Recorder(name) for name in kernels})
    try:
        function(*args, **options)
    finally:
        vars(module).update(kernels)
    return found


def lacking(kernels: bool = True) -> str:
    """What a lesson on kernels can't do here, and why, in a clause; empty where it can. kernels: also launch them."""
    if torch is None:
        return "needs torch: pip install -r requirements-kernels.txt (without a GPU add -c constraints-cpu.txt)"
    if kernels and triton is None:
        if sys.platform != "linux":
            return "needs Triton, which has no package for macOS and Windows: what doesn't launch a kernel runs without"
        return "needs Triton: pip install -r requirements-kernels.txt"
    return ""


def need(lesson: str, kernels: bool = True) -> None:
    """CourseError, with the way out, unless torch (and Triton, for kernels) can be used."""
    if missing := lacking(kernels):
        raise CourseError(f"{lesson} {missing}")

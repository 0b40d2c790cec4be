"""torch and Triton for the lessons on kernels: on a GPU where there is one, in Triton's interpreter where there is none.

`from kit.gpu import INTERPRETED, jit, tl, torch, triton`. Without Triton (macOS, Windows) or torch the import works all the
same: the names are None, `jit` leaves a kernel a function that nobody may launch, and `need` says what to install.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kit.errors import CourseError

torch: Any
triton: Any
tl: Any

try:
    import torch
except ImportError:
    torch = None

HAS_GPU = torch is not None and torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it once, when it is imported

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if HAS_GPU and not INTERPRETED else "cpu"


def jit(function: Callable) -> Any:
    """`triton.jit`, or the function itself where there is no Triton."""
    return function if triton is None else triton.jit(function)


def need(lesson: str, kernels: bool = True) -> None:
    """CourseError, with the way out, unless torch (and Triton, for kernels) can be used."""
    if torch is None:
        raise CourseError(f"{lesson} needs torch: pip install -r requirements.txt (on a CPU add -c constraints-cpu.txt)")
    if kernels and triton is None:
        raise CourseError(f"the kernels of {lesson} need Triton, which exists for Linux only: its other parts run without")

"""What the notebooks share: start a lesson, follow its file while it is edited, judge a prediction, show the simulator."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from kit import exercise

ROOT = Path(__file__).resolve().parents[2]
ORDER = (
    "s01_decode_loop",
    "s02_kv_cache",
    "s03_step_cost",
    "s04_kv_memory",
    "s05_paged_blocks",
    "s07_prefix_cache",
    "s08_static_batching",
    "s09_continuous_batching",
    "s10_scheduler",
    "s11_chunked_prefill",
    "s12_preemption",
    "s13_fairness",
    "s14_unified_scheduler",
    "s17_triton_decode",
    "s18_triton_prefill",
)
_seen: dict[str, float] = {}  # lesson -> when its file was last changed
_lesson = ""


def start(lesson: str) -> ModuleType:
    """Import a lesson, say which of its pieces are yours, and from now on reload it whenever its file has changed.

    The notebook calls everything through the module (`s10.Scheduler`), so a reload reaches every cell that runs after it.
    """
    global _lesson
    _lesson = lesson
    module = importlib.import_module(lesson)
    print(exercise.summary(lesson) or f"{lesson}: the complete lesson, from solutions/")
    _note_times()
    shell = _shell()
    if shell is not None:
        for old in [f for f in shell.events.callbacks["pre_run_cell"] if getattr(f, "__name__", "") == "reload"]:
            shell.events.unregister("pre_run_cell", old)
        shell.events.register("pre_run_cell", reload)
    return module


def reload(*_: Any) -> bool:
    """Reload the lessons if one of their files has changed, and say so. Returns whether it did.

    A file that does not even compile is named, and what was loaded before stays in use.
    """
    loaded = [name for name in ORDER if name in sys.modules]
    changed = [name for name in loaded if _changed_at(name) != _seen.get(name)]
    if not changed:
        return False
    _note_times()
    try:
        for name in loaded[loaded.index(changed[0]) :]:
            importlib.reload(sys.modules[name])
    except Exception as error:  # whatever a half-edited file raises
        print(f"{changed[0]}.py can't be loaded: {type(error).__name__}: {error}. The version before stays in use.")
        return False
    print(f"reloaded {', '.join(changed)}")
    print(exercise.summary(_lesson or changed[0]))
    return True


def _note_times() -> None:
    _seen.update({name: _changed_at(name) for name in ORDER if name in sys.modules})


def _changed_at(name: str) -> float:
    return Path(str(sys.modules[name].__file__)).stat().st_mtime


def _shell() -> Any:
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def judge(prediction: Any, measured: float, unit: str = "", *, digits: int = 2, how: str = "measured") -> str:
    """A prediction beside what was measured, or computed (`how`). digits: of a float, behind the point."""
    words = f"{_number(measured, digits)} {unit}".rstrip()
    if prediction is ... or prediction is None:
        return f"No prediction yet: put a number in place of the dots, then run again. {how.capitalize()}: {words}."
    if prediction == measured:
        return f"Predicted and {how}: {words}."
    return f"You predicted {_number(prediction, digits)}, {how}: {words}."


def _number(value: Any, digits: int = 2) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}" if isinstance(value, float) else str(value)


def simulator(lesson: str, preset: str | None = None) -> Any:
    """The simulator with its knobs; without ipywidgets a picture of one step, and how to get the knobs."""
    try:
        if lesson.startswith("s14"):
            from kit.trace_widgets import TraceSimulator

            return TraceSimulator(preset)
        from kit.widgets import Simulator
    except ImportError:
        print("The knobs need ipywidgets (python3 course.py lab installs it); here is a still picture.")
        return still(lesson, preset)
    return Simulator(lesson, preset)


def still(lesson: str, preset: str | None = None, step: int | None = None, selected: str | None = None) -> Any:
    """A still picture of the simulator for an IPython display. step: from 1; unset, the last. s09 shows both batchers."""
    from dataclasses import replace

    from IPython.display import SVG

    from kit.drawing import svg
    from kit.simulators import S08, S09, presets
    from kit.simulators import frames as run

    if lesson.startswith("s14"):
        from kit import trace_simulator

        workloads = trace_simulator.presets()
        shown = trace_simulator.frames(workloads[preset or next(iter(workloads))])
        return SVG(trace_simulator.svg(shown[-1 if step is None else min(step, len(shown)) - 1], selected, key="still"))
    setups = presets(lesson)
    setup = setups[preset or next(iter(setups))]
    frames = run(setup)
    others = run(replace(setup, lesson=S08)) if lesson == S09 else []
    at = max(len(frames), len(others)) if step is None else step
    versus = others[min(at, len(others)) - 1] if others else None
    return SVG(svg(frames[min(at, len(frames)) - 1], selected, versus=versus, key="still"))


def quiz(lesson: str) -> None:
    """Show the lesson's quiz; without jupyterquiz say where else to take it."""
    path = ROOT / "quizzes" / f"{lesson}.json"
    try:
        from jupyterquiz import display_quiz
    except ImportError:
        print(f"The quiz needs jupyterquiz here; in a terminal: python3 course.py quiz {lesson.partition('_')[0]}")
        return
    display_quiz(str(path), shuffle_answers=False)

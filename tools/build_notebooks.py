"""Run every notebook from top to bottom on a fresh cut of the course, and store its outputs.

    python tools/build_notebooks.py [LESSON ...]   run and store
    python tools/build_notebooks.py --check        run and store nothing: only say whether all of them still run

The notebooks themselves are the source. Of a widget and of a quiz only a line of text is stored: their scripts live in a
kernel that is gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[1]
TOO_SLOW_S = 60
QUIZ = "Run this cell for six questions, or in a terminal: python3 course.py quiz {}"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def fresh_copy(folder: Path) -> Path:
    """A copy of the course with nothing written in code/: what a learner has on the first day."""
    for part in ("code/kit", "solutions", "notebooks", "quizzes", "lessons/figures", "tests/data", "tools"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    subprocess.run([sys.executable, str(folder / "tools" / "cut.py"), "--force"], check=True, stdout=subprocess.DEVNULL)
    return folder


def execute(path: Path) -> tuple[Any, float]:
    """Run a notebook; returns it with its outputs, and the seconds it took. CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    start = time.monotonic()
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    return notebook, time.monotonic() - start


def settle(notebook: Any, lesson: str) -> None:
    """Take out what differs from run to run."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.metadata.clear()
        cell.execution_count = number
        cell.outputs = [output for output in cell.outputs if "application/javascript" not in output.get("data", {})]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            output.get("data", {}).pop(WIDGET_VIEW, None)
            if "data-numquestions" in output.get("data", {}).get("text/html", ""):
                output.data = {"text/plain": QUIZ.format(lesson)}


def main(argv: list[str]) -> int:
    os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="module://matplotlib_inline.backend_inline")
    store = "--check" not in argv
    wanted = [name for name in argv if not name.startswith("-")]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted((fresh_copy(Path(folder)) / "notebooks").glob("*.ipynb")):
            if wanted and not any(path.stem.startswith(name) for name in wanted):
                continue
            try:
                notebook, seconds = execute(path)
            except CellExecutionError as error:
                print(f"{path.name}: {error}", file=sys.stderr)
                failures += 1
                continue
            slow = seconds > TOO_SLOW_S
            failures += slow
            print(f"{path.name}: {seconds:.0f} s{f', more than {TOO_SLOW_S}' if slow else ''}")
            if store:
                settle(notebook, path.stem.partition("_")[0])
                nbformat.write(notebook, ROOT / "notebooks" / path.name)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

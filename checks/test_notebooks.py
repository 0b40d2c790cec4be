"""The notebooks: they run from top to bottom on a fresh cut, and are committed with their outputs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from place import LESSONS, ROOT, clean_env

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: no notebook can be read")
SECONDS = 60
lessons = pytest.mark.parametrize("lesson", LESSONS)


def read(lesson: str):
    return nbformat.read(ROOT / f"notebooks/{lesson}.ipynb", as_version=4)


def errors(notebook) -> list[str]:
    """`cell 3: NameError: …` for each cell that failed, also where a widget caught it on its standard error."""
    return [
        f"cell {number}: {output.get('ename', 'stderr')}: {output.get('evalue', output.get('text', ''))[-500:]}"
        for number, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
        if output.output_type == "error" or (output.get("name") == "stderr" and "Traceback" in output.text)
    ]


def printed(notebook) -> list[str]:
    """What each code cell printed: every number of it is computed or drawn from a seed, so it is the same in every run."""
    return [
        "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@lessons
def test_a_notebook_runs_headless_in_under_a_minute(fresh, lesson, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: notebooks are not run")
    specs = pytest.importorskip("jupyter_client.kernelspec", reason="jupyter is not installed: notebooks are not run")
    course = Path(shutil.copytree(fresh, tmp_path / "course"))
    for name in set(os.environ) - set(clean_env()):
        monkeypatch.delenv(name)
    here = specs.KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python")
    monkeypatch.setattr(specs.KernelSpecManager, "get_kernel_spec", lambda self, name: here)
    notebook = nbformat.read(course / f"notebooks/{lesson}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, allow_errors=True, resources={"metadata": {"path": str(course / "notebooks")}}
    )
    start = time.monotonic()
    client.execute()
    assert not errors(notebook)
    assert time.monotonic() - start < SECONDS
    assert printed(notebook) == printed(read(lesson)), f"stale: python tools/build_notebooks.py {lesson}"


@lessons
def test_a_notebook_is_committed_with_its_outputs_and_without_errors(lesson):
    notebook = read(lesson)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert code and all(cell.execution_count for cell in code), "some cells were not run before the commit"
    assert any(cell.outputs for cell in code)
    assert not errors(notebook)


@lessons
def test_a_picture_stands_in_where_widgets_cannot_run(lesson):
    shown = [output for cell in read(lesson).cells for output in cell.get("outputs", []) if "data" in output]
    kinds = {kind for output in shown for kind in output.data}
    assert kinds & {"image/svg+xml", "image/png", "text/html"}, "a repository viewer would see no picture"

"""Which Python runs a command that needs packages: the running one if it has them, else .venv's, made on first use."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from commands.common import ROOT, Problem

VENV = ROOT / ".venv"
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
NUMPY, KERNELS = "requirements-numpy.txt", "requirements-kernels.txt"
NEEDS = {"s01": NUMPY, "s02": NUMPY, "s06": NUMPY, "s17": KERNELS, "s18": KERNELS}  # beyond the standard library
DOES_WITHOUT = "s17"  # its script says itself what it leaves out where there is no torch
CPU_ONLY = "constraints-cpu.txt"  # a torch without the gigabytes that only a GPU needs
NO_NETWORK = re.compile(r"connection|resolution|resolve|unreachable|timed out|no matching distribution", re.I)


def needs(lesson: str) -> list[str]:
    """The requirements files of a lesson ("s01_decode_loop"): none where the standard library is enough."""
    return [NEEDS[lesson[:3]]] if lesson[:3] in NEEDS else []


def ready_python(lesson: str) -> str:
    """The path of a Python that can run a lesson now: this one, or .venv's. Installs nothing; Problem says what is missing."""
    for requirements in needs(lesson):
        if all(installed(line) for line in requirement_lines(ROOT / requirements)):
            continue
        if not (VENV_PYTHON.exists() and (VENV / f"{requirements}.installed").exists()):
            if lesson.startswith(DOES_WITHOUT):
                return sys.executable
            what = ", ".join(line.partition(";")[0] for line in requirement_lines(ROOT / requirements))
            raise Problem(
                f"{lesson} needs {what}, which this Python lacks: python3 course.py check {lesson[:3]} installs it into .venv, "
                "where `run` finds it too"
            )
        return str(VENV_PYTHON)
    return sys.executable


def python_for(*files: str) -> str:
    """The path of a Python that has what requirements files ask for. Problem, in plain words, if there is no way."""
    if all(installed(line) for file in files for line in requirement_lines(ROOT / file)):
        return sys.executable
    for file in files:
        bring(file)
    return str(VENV_PYTHON)


def bring(requirements: str) -> None:
    """See to it that .venv has what a requirements file asks for."""
    wanted = list(requirement_lines(ROOT / requirements))
    stamp = VENV / f"{requirements}.installed"  # what was asked for when .venv got it
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    if VENV_PYTHON.exists() and stamp.exists() and stamp.read_text() == digest:
        return
    if not VENV_PYTHON.exists():
        make_venv()
    pip_install(requirements)
    stamp.write_text(digest)


def requirement_lines(path: Path) -> Iterator[str]:
    """The requirements in a file and in those that it includes, without comments and what is for another system."""
    for line in path.read_text("utf-8").splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("-r "):
            yield from requirement_lines(path.parent / line[3:].strip())
        elif line and ("sys_platform" not in line or f'"{sys.platform}"' in line):
            yield line


def installed(requirement: str) -> bool:
    """Whether the running Python has what a line such as `pytest>=8.0,<10` asks for."""
    name, bounds = re.fullmatch(r"([\w.-]+)\s*([^;]*).*", requirement).groups()  # type: ignore[union-attr]
    try:
        have = _numbers(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False
    for operator, version in re.findall(r"(>=|<|==)\s*([\w.]+)", bounds):
        want = _numbers(version)
        if not {">=": have >= want, "<": have < want, "==": have[: len(want)] == want}[operator]:
            return False
    return True


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


def make_venv() -> None:
    command = [sys.executable, "-m", "venv", str(VENV)]
    print(f"This Python lacks packages that the command needs. Making .venv, once: {_show(command)}", file=sys.stderr)
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except KeyboardInterrupt:
        shutil.rmtree(VENV, ignore_errors=True)
        raise
    if done.returncode:
        shutil.rmtree(VENV, ignore_errors=True)  # half a .venv would be taken for a whole one next time
        said = (done.stdout + done.stderr).strip()
        if "ensurepip" in said:
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise Problem(
                "this Python cannot make a virtual environment, because its ensurepip module is missing. "
                f"On Debian and Ubuntu: sudo apt install python{version}-venv, then repeat the command"
            )
        raise Problem(f"making .venv failed: {said.splitlines()[-1] if said else f'exit code {done.returncode}'}")


def pip_install(requirements: str) -> None:
    command = [str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-q", "-r", requirements]
    if any(line.startswith("torch") for line in requirement_lines(ROOT / requirements)) and not has_torch():
        print("torch and triton are large: half a gigabyte to download without a GPU, 3 GB with one.", file=sys.stderr)
        if not has_gpu():
            command += ["-c", CPU_ONLY]
    print(f"Installing into .venv: {_show(command)}", file=sys.stderr)
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        why = "is there a network?" if NO_NETWORK.search(done.stderr) else "its message is above."
        raise Problem(f"pip could not install {requirements} into .venv: {why} Then repeat the command")


def has_torch() -> bool:
    """Whether .venv has a torch already, perhaps a build that somebody chose: then that one stays."""
    return any(VENV.glob("lib/python*/site-packages/torch")) or (VENV / "Lib/site-packages/torch").exists()


def has_gpu() -> bool:
    """Whether an NVIDIA GPU can be seen, asked without torch: which torch to install depends on it."""
    if any(Path("/proc/driver/nvidia/gpus").glob("*")):
        return True
    tool = shutil.which("nvidia-smi")
    try:
        return tool is not None and "GPU" in subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False


def _show(command: list[str]) -> str:
    """A command as one would type it in the course's folder."""
    return " ".join(os.path.relpath(part, ROOT) if part.startswith(str(ROOT)) else part for part in command)

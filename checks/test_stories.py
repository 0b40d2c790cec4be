"""`--model tiny`: the schedulers make real text, and every schedule makes the same."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from place import ROOT, run

pytest.importorskip("numpy", reason="numpy is not installed: no model can run")
SERVING = ("s08_static_batching", "s09_continuous_batching", "s10_scheduler")
# blocks of 8: 9 hold one story, 20 make three of four wait or go, 400 hold all
SCHEDULES = {
    **{lesson[:3]: (lesson,) for lesson in SERVING},
    **{f"s10, {policy}, {blocks} blocks": ("s10_scheduler", "--policy", policy, "--blocks", blocks)
       for policy in ("fcfs", "shortest", "priority") for blocks in ("9", "20", "400")},
}  # fmt: skip


def told(tmp_path: Path, lesson: str, *args: str, folder: str = "solutions", bare: bool = False):
    """(how a script with --model tiny ended, request -> tokens)."""
    file = tmp_path / "tokens.json"
    command = (sys.executable, *(["-S"] if bare else []), ROOT / f"{folder}/{lesson}.py", "--model", "tiny", "--json", file)
    done = run(*command, *args)
    return done, json.loads(file.read_text("utf-8")) if file.exists() else {}


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """The oracle: no cache at all, everything computed anew for every token."""
    from kit.stories import requests_of
    from kit.tinylm import TinyLM

    model = TinyLM.load(dtype="float64")
    output: dict[str, list[int]] = {}
    for request in requests_of(model):
        tokens = output[request.id] = []
        while len(tokens) < request.max_tokens and model.eos_id not in tokens:
            tokens.append(int(model.logits([*request.prompt, *tokens])[-1].argmax()))
    return output


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_tells_the_same_stories(tmp_path, alone, schedule):
    done, tokens = told(tmp_path, *SCHEDULES[schedule])
    assert done.returncode == 0, done.stderr
    assert tokens == alone
    assert f"{len(alone)} of {len(alone)} have the tokens that they get alone" in done.stdout
    if ", 9 blocks" in schedule or ", 20 blocks" in schedule:
        rows = [line.split() for line in done.stdout.splitlines() if line.endswith("the same")]
        assert sum(int(row[5]) for row in rows) > 0, "a tight pool evicts nobody: this check checks nothing"


@pytest.mark.parametrize(
    ("schedule", "wrong"),
    {"s08": "", "s09": "r4 r5", **{f"s10, {policy}, 20 blocks": "r1 r3 r4 r5" for policy in ("fcfs", "shortest", "priority")},
     "s10, fcfs, 400 blocks": "r4 r5"}.items(),
)  # fmt: skip
def test_wrong_stories_are_named(monkeypatch, capsys, schedule, wrong):
    """What s06's "Break it" says: blocks read in ascending order."""
    import s06_paged_attention as s06

    gather = s06.gather
    monkeypatch.setattr(s06, "gather", lambda cache, blocks, n: gather(cache, sorted(blocks), n))
    lesson, *args = SCHEDULES[schedule]
    assert importlib.import_module(lesson).main(["--model", "tiny", "--solutions", *args]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("NOT the same")]
    assert " ".join(rows) == wrong


def test_what_can_never_run_is_said_beside_the_stories(tmp_path):
    done, _ = told(tmp_path, "s10_scheduler", "--blocks", "8")
    assert done.returncode == 0 and "not served" in done.stdout and "KV blocks, admissions may fill 8" in done.stdout


@pytest.mark.parametrize("lesson", SERVING)
def test_without_numpy_the_model_says_what_to_install(tmp_path, lesson):
    done, _ = told(tmp_path, lesson, bare=True)
    assert done.returncode == 2 and done.stderr == "TinyLM needs NumPy: pip install numpy\n"
    done = run(sys.executable, "-S", ROOT / "course.py", "run", lesson[:3], "--model", "tiny", cwd=tmp_path)
    if not (ROOT / ".venv").exists():
        assert done.returncode == 2 and "course.py check s06 installs it" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--model", "large"), "model 'large' is unknown; choose tiny"),
        (("--model", "tiny", "--mystery", "A"), "leave out --mystery"),
        (("--model", "tiny", "--trace", "x.csv"), "leave out --trace"),
        (("--model", "tiny", "--replay", "x.jsonl"), "leave out --replay"),
    ],
)
def test_a_model_that_cannot_be_is_one_sentence(args, words):
    done = run(sys.executable, ROOT / "solutions/s10_scheduler.py", *args)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--prompt", "Bär"), "no token for 'ä'"),
        (("--prompt", "a b " * 400), "the model takes"),
        (("--block-size", "0"), "0"),
    ],
)
def test_a_bad_setting_of_s06_is_one_sentence(args, words):
    done = run(sys.executable, ROOT / "solutions/s06_paged_attention.py", *args)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("size", ("1", "4", "512", "1000"))
def test_a_story_of_ones_own_at_any_block_size(size):
    done = run(sys.executable, ROOT / "solutions/s06_paged_attention.py", "--prompt", "Long ago", "--block-size", size)
    assert done.returncode == 0 and "the same as from one contiguous cache" in done.stdout, done.stderr

"""Every script runs on a bare Python, answers bad input in one sentence, and never shows a traceback."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from place import LESSONS, STEMS, clean_env, needs, python, run

FOLDERS = ("code", "solutions")
SERVING = [lesson for lesson in LESSONS if lesson >= "s08" and not needs(lesson)]  # those that take a trace
TEXTS = [lesson for lesson in LESSONS if lesson < "s03"]  # those that tell a story
SECONDS = 30  # no measure of speed: a script that hangs, on a machine that does other things too
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"
TRACES = {  # name -> (content, what the sentence must contain)
    "empty": ("", "empty"),
    "header only": (HEADER, "no requests"),
    "binary": (b"\x00\xff\xfe\x80\x00" * 50, "not text"),
    "missing column": ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,374\n", "GeneratedTokens"),
    "bad row": (HEADER + ROW + "2023-11-16 18:15:47,many,44\n", "line 3 many"),
    "short row": (HEADER + ROW + "2023-11-16 18:15:47,374\n", "line 3"),
    "bad timestamp": (HEADER + ROW + "yesterday,374,44\n", "line 3 yesterday"),
    "timestamp nan": (HEADER + "nan,374,44\n", "line 2 nan"),
    "unordered": (HEADER + ROW + "2023-11-16 18:15:45,374,44\n", "line 3"),
    "empty prompt": (HEADER + ROW + "2023-11-16 18:15:47,0,44\n", "line 3 0"),
    "nothing to generate": (HEADER + ROW + "2023-11-16 18:15:47,374,0\n", "line 3 0"),
    "negative prompt": (HEADER + ROW + "2023-11-16 18:15:47,-374,44\n", "line 3 -374"),
}
CONFIGS = {
    "not json": ("{max_num_seqs: 8", "JSON"),
    "no object": ("[1, 2]", "object"),
    "misspelt key": ('{"max_num_seq": 8}', "max_num_seqs"),
    "zero seats": ('{"max_num_seqs": 0}', "max_num_seqs 0"),
    "negative budget": ('{"max_num_batched_tokens": -1}', "-1"),
    "fractional budget": ('{"max_num_batched_tokens": 12.5}', "12.5"),
    "no blocks": ('{"num_blocks": 0}', "num_blocks 0"),
    "text for a number": ('{"block_size": "16"}', "block_size 16"),
    "watermark of all": ('{"watermark": 1}', "watermark 1"),
    "watermark nan": ('{"watermark": NaN}', "watermark"),
    "policy": ('{"policy": "random"}', "random fcfs"),
    "budget below seats": ('{"max_num_batched_tokens": 4, "max_num_seqs": 8}', "4 8"),
    "chunked": ('{"chunked_prefill": true}', "chunked_prefill s11"),
}
CASE = {"block_size": 4, "num_blocks": 8, "max_num_seqs": 2, "max_num_batched_tokens": 16}
REQUEST = {"id": "A", "arrival": 0, "prompt_len": 3, "max_tokens": 2}
REPLAYS = {
    "empty prompt": ([{**REQUEST, "prompt_len": 0}], "A prompt"),
    "nothing to generate": ([{**REQUEST, "max_tokens": 0}], "A max_tokens 0"),
    "duplicate live id": ([REQUEST, REQUEST], "A"),
    "negative arrival": ([{**REQUEST, "arrival": -1}], "A -1"),
    "arrival nan": ([{**REQUEST, "arrival": float("nan")}], "A nan"),
}
OPTIONS = {
    "zero budget": (["--budget", "0"], "budget 0"),
    "negative budget": (["--budget", "-8"], "budget -8"),
    "fractional budget": (["--budget", "2.5"], "budget 2.5"),
    "budget in words": (["--budget", "many"], "budget many"),
    "no budget": (["--budget"], "budget"),
    "no blocks": (["--blocks", "0"], "blocks 0"),
    "unknown policy": (["--policy", "random"], "random fcfs shortest priority"),
    "unknown mystery": (["--mystery", "D"], "D A B C"),
    "misspelt option": (["--bugdet", "8"], "--bugdet --budget"),
    "stray word": (["fast"], "fast"),
    "missing trace": (["--trace", "no/such.csv"], "no/such.csv"),
    "a folder as trace": (["--trace", "."], "directory"),
    "missing config": (["--config", "no/such.json"], "no/such.json"),
    "missing replay": (["--replay", "no/such.jsonl"], "no/such.jsonl"),
    "unwritable output": (["--json", "no/such/folder/out.json"], "no/such/folder"),
    "a folder as output": (["--json", "."], "directory"),
}


STORIES = {
    "negative temperature": (["--temperature", "-1"], "temperature -1 0"),
    "temperature nan": (["--temperature", "nan"], "temperature nan"),
    "temperature in words": (["--temperature", "hot"], "temperature hot number"),
    "top-p zero": (["--top-p", "0"], "top_p 0"),
    "top-p above one": (["--top-p", "1.5"], "top_p 1.5"),
    "top-k negative": (["--top-k", "-2"], "top-k -2"),
    "no tokens": (["--max-tokens", "0"], "max-tokens 0"),
    "empty stop": (["--stop", ""], "stop empty"),
    "unknown letter": (["--prompt", "Es war 1 Bär"], "no token character 8"),
    "prompt too long": (["--prompt", "a b " * 400], "prompt tokens takes"),
    "seed in words": (["--seed", "x"], "seed x whole number"),
    "a trace": (["--trace", "x.csv"], "--trace"),
}


def script(course: Path, folder: str, stem: str) -> Path:
    return course / folder / f"{stem}.py"


@pytest.fixture(scope="module")
def runs(fresh, tmp_path_factory) -> dict[tuple[str, str], tuple[subprocess.CompletedProcess[str], float, Path]]:
    """Every script of both folders: (how it ended, seconds, its --json file), two at a time."""

    def one(folder: str, stem: str):
        here = tmp_path_factory.mktemp(f"{folder}_{stem}")
        json_file = here / "numbers.json"
        options = ["--json", json_file] if stem in LESSONS else []
        start = time.monotonic()
        done = python(script(fresh, folder, stem), *options, cwd=here)
        return done, time.monotonic() - start, json_file

    pairs = [(folder, stem) for folder in FOLDERS for stem in STEMS]
    with ThreadPoolExecutor(2) as workers:
        return dict(zip(pairs, workers.map(lambda pair: one(*pair), pairs)))


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("stem", STEMS)
def test_a_script_runs_with_nothing_but_what_its_lesson_needs(runs, folder, stem):
    done, seconds, _ = runs[folder, stem]
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and seconds < SECONDS
    if stem in LESSONS:
        assert done.stdout.count("\n") > 5
        assert done.stdout == runs["solutions", stem][0].stdout, (
            "with everything borrowed code/ prints what solutions/ does"
        )


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_run_says_in_one_line_what_is_borrowed(runs, lesson):
    assert re.fullmatch(rf"{lesson}: borrowed: .+\n", runs["code", lesson][0].stderr)
    assert runs["solutions", lesson][0].stderr == ""


@pytest.mark.parametrize("lesson", LESSONS)
def test_json_holds_the_numbers_and_no_nan(runs, lesson):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = runs["code", lesson][2].read_text("utf-8")
    assert json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_millisecond_is_called_modelled(runs, lesson):
    text = runs["solutions", lesson][0].stdout
    if re.search(r"\bms\b|TTFT", text):
        assert "modelled" in text and "A100" in text and "Llama-3-8B" in text


@pytest.mark.parametrize("lesson", LESSONS)
def test_help_says_each_option_in_one_line(fresh, lesson):
    done = python(script(fresh, "solutions", lesson), "--help", COLUMNS="80")
    assert done.returncode == 0 and done.stderr == ""
    rows = done.stdout.partition("options:\n")[2].splitlines()
    assert len(rows) >= 4  # help, trace or prompt, json, solutions
    assert all(re.match(r"  -\S.*?  +\S", row) for row in rows), done.stdout


def assert_refused(done: subprocess.CompletedProcess[str], lesson: str, words: str) -> None:
    """Exit code 2, and one sentence on stderr (beside the summary) with the words that matter."""
    said = [line for line in done.stderr.splitlines() if not line.startswith(f"{lesson}: ")]
    assert done.returncode == 2, f"exit code {done.returncode}: {done.stderr[-800:]}{done.stdout[:200]}"
    assert len(said) == 1 and "Traceback" not in done.stderr, done.stderr
    assert all(word in said[0] for word in words.split()), f"{said[0]!r} lacks one of: {words}"


def outcome(fresh: Path, *args: str | Path, lesson: str = "s10_scheduler") -> subprocess.CompletedProcess[str]:
    return python(script(fresh, "code", lesson), *args)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_option_is_one_sentence_and_exit_code_2(fresh, name):
    args, words = OPTIONS[name]
    assert_refused(outcome(fresh, *args), "s10_scheduler", words)


@pytest.mark.parametrize("name", TRACES)
def test_a_bad_trace_is_one_sentence_with_line_and_content(fresh, tmp_path, name):
    content, words = TRACES[name]
    file = tmp_path / "trace.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(outcome(fresh, "--trace", file), "s10_scheduler", words)


@pytest.mark.parametrize("lesson", [lesson for lesson in SERVING if lesson < "s10_scheduler"])
def test_the_other_lessons_refuse_a_bad_trace_and_option_too(fresh, tmp_path, lesson):
    file = tmp_path / "trace.csv"
    file.write_text(TRACES["bad row"][0], "utf-8")
    assert_refused(outcome(fresh, "--trace", file, lesson=lesson), lesson, "line 3 many")
    if lesson < "s10":
        assert_refused(outcome(fresh, "--budget", "8", lesson=lesson), lesson, "--budget")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bad_config_is_one_sentence_in_the_users_words(fresh, tmp_path, name):
    content, words = CONFIGS[name]
    file, trace = tmp_path / "config.json", tmp_path / "trace.csv"
    file.write_text(content, "utf-8")
    trace.write_text(HEADER + ROW, "utf-8")
    assert_refused(outcome(fresh, "--config", file, "--trace", trace), "s10_scheduler", words)


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("lesson", TEXTS)
def test_a_bad_setting_of_a_story_is_one_sentence(fresh, lesson, name):
    args, words = STORIES[name]
    assert_refused(outcome(fresh, *args, lesson=lesson), lesson, words)


@pytest.mark.parametrize("lesson", TEXTS)
def test_a_story_of_ones_own(fresh, lesson):
    args = (
        "--prompt",
        "One day",
        "--temperature",
        "0.8",
        "--seed",
        "3",
        "--max-tokens",
        "9",
        "--stop",
        "~",
        "--top-p",
        "0.9",
    )
    done = outcome(fresh, *args, lesson=lesson)
    assert done.returncode == 0 and "One day" in done.stdout and "9 tokens; max_tokens is reached" in done.stdout


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if needs(lesson)])
def test_without_its_packages_a_lesson_says_what_to_install(fresh, lesson):
    file = script(fresh, "code", lesson)
    kernels = "requirements-kernels.txt" in needs(lesson)
    words = "torch pip install -r requirements-kernels.txt" if kernels else "NumPy pip install numpy"
    done = run(sys.executable, "-S", file)
    if lesson == "s17_triton_decode":  # it walks through its kernel in plain Python
        assert done.returncode == 0 and all(word in done.stdout for word in f"Skipped {words}".split()), done.stderr
    else:
        assert_refused(done, lesson, words)
    done = run(sys.executable, "-S", fresh / "course.py", "run", lesson, cwd=fresh)
    if lesson == "s17_triton_decode":  # `run` starts it all the same
        assert done.returncode == 0 and "What the compiler makes of it" in done.stdout, done.stderr
        return
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in ("numpy", f"course.py check {lesson[:3]}"))


@pytest.mark.parametrize("name", REPLAYS)
def test_a_bad_request_in_a_replay_is_one_sentence_that_names_it(fresh, tmp_path, name):
    requests, words = REPLAYS[name]
    file = tmp_path / "cases.json"
    file.write_text(json.dumps([{"id": "X1", "config": CASE, "requests": requests}]), "utf-8")
    assert_refused(outcome(fresh, "--replay", file), "s10_scheduler", words)


def test_a_request_that_can_never_run_is_counted_and_named_and_the_others_finish(fresh, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADER + ROW + "2023-11-16 18:15:47,99999,44\n" + "2023-11-16 18:15:48,374,44\n", "utf-8")
    done = outcome(fresh, "--trace", trace)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^refused at add: 1 rejected_kv\n  request r1 .*\d", done.stdout, re.M), (
        "who is refused, and by which numbers?"
    )


@pytest.mark.parametrize("lesson", SERVING)
def test_a_trace_runs(fresh, tmp_path, lesson):
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second:02d}.5,{100 + second},{3 + second % 7}\n" for second in range(30)]
    trace.write_text(HEADER + "".join(rows), "utf-8")
    done = outcome(fresh, "--trace", trace, lesson=lesson)
    assert done.returncode == 0 and "30" in done.stdout, done.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or sys.platform == "win32", reason="Ctrl-C can't be sent on Windows")
@pytest.mark.parametrize("lesson", ["s10_scheduler"])
def test_ctrl_c_leaves_no_traceback(fresh, lesson):
    command = [sys.executable, "-S", "-u", script(fresh, "code", lesson)]
    process = subprocess.Popen(command, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in stderr, stderr


def test_a_reader_that_has_seen_enough_is_no_error(fresh):
    command = [sys.executable, "-S", "-u", script(fresh, "code", "s10_scheduler")]
    process = subprocess.Popen(command, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.close()
    stderr = process.stderr.read()
    process.wait(timeout=20)
    process.stderr.close()
    assert "Traceback" not in stderr and "BrokenPipe" not in stderr


@pytest.mark.parametrize("letter", "ABC")
def test_a_mystery_scheduler_runs_to_its_end(fresh, letter):
    done = python(script(fresh, "solutions", "s10_scheduler"), "--mystery", letter)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr

"""kit.options: what is wrong is one sentence and exit code 2, and nothing else ever leaves a traceback."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys

import pytest
from place import ROOT, clean_env, python, run

sys.path.insert(0, str(ROOT / "solutions"))

from kit import options
from kit.errors import BadConfig, CourseError

LESSON = "s10_scheduler"


def complaint(capsys, *argv, lesson=LESSON):
    """What a wrong command line is answered with."""
    with pytest.raises(SystemExit) as caught:
        options.parse(lesson, argv)
    said = capsys.readouterr()
    assert caught.value.code == 2 and said.out == ""
    assert said.err.count("\n") == 1 and "usage" not in said.err and "--help" in said.err
    return said.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--budget", "0"], "budget is 0; it must be at least 1"),
        (["--budget", "-3"], "budget is -3; it must be at least 1"),
        (["--budget", "1.5"], "budget is '1.5'; it must be a whole number"),
        (["--blocks", "x"], "blocks is 'x'; it must be a whole number"),
        (["--blocks", ""], "blocks is ''"),
        (["--budget"], "--budget needs a value"),
        (["--policy", "lifo"], "policy 'lifo' is unknown; choose fcfs, shortest, priority"),
        (["--mystery", "D"], "mystery 'D' is unknown; choose A, B, C"),
        (["--budgt", "5"], "unknown option --budgt; did you mean --budget?"),
        (["--bud", "5"], "unknown option --bud"),
        (["trace.csv"], "unknown option trace.csv"),
        (["--solutions=yes"], "--solutions takes no value"),
        *((["--" + name, ""], f"--{name} is ''; it must be the name of a file")
          for name in ("trace", "replay", "config", "json")),
        *((["--replay", "cases.json", option, value], f"leave out {option}")
          for option, value in (("--trace", "x"), ("--json", "x.json"), ("--budget", "4"), ("--policy", "fcfs"), ("--mystery", "A"))),
        (["--trace", "x.csv", "--mystery", "A"], "--mystery runs a load of its own: leave out --trace"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_sentence(capsys, argv, words):
    assert words in complaint(capsys, *argv)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"max_num_sequences": 4}', "unknown option 'max_num_sequences'; did you mean 'max_num_seqs'?"),
        ('{"max_num_seqs": 4,\n "watermark" 0}', "is not JSON: Expecting ':' delimiter at line 2, column 14"),
        ("[1]", "holds no JSON object"),
        ('{"num_blocks": 4, "num_blocks": 5}', "the key 'num_blocks' stands twice"),
        ("", "is not JSON"),
        ('{"num_blocks": "many"}', "num_blocks is 'many'"),
        ('{"watermark": 2}', "watermark is 2"),
        ('{"num_gpu_blocks": 1}', "num_gpu_blocks is 1; it must be at least 2"),
        ('{"num_gpu_blocks": 9, "num_blocks": 4}', "num_gpu_blocks and num_blocks set the same thing"),
        ('{"chunked_prefill": true}', "chunked_prefill is true; s10 knows only false there, more comes with s11"),
    ],
)
def test_a_wrong_config_file_is_one_sentence(capsys, tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_text(content)
    assert words in complaint(capsys, "--config", str(path))


def test_a_config_file_that_is_none(capsys, tmp_path):
    assert "can't be read: No such file" in complaint(capsys, "--config", str(tmp_path / "x"))
    assert "can't be read: Is a directory" in complaint(capsys, "--config", str(tmp_path))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "is not text" in complaint(capsys, "--config", str(tmp_path / "bytes"))


def test_an_output_that_can_not_be_written_is_refused_before_the_run(capsys, tmp_path):
    assert "is a directory" in complaint(capsys, "--json", str(tmp_path))
    assert f"there is no folder {tmp_path / 'no'}" in complaint(capsys, "--json", str(tmp_path / "no" / "x.json"))
    file = tmp_path / "x.json"
    file.write_text("mine")
    assert options.parse(LESSON, ["--json", str(file)]).json == str(file)
    assert file.read_text() == "mine"  # the check alone touches nothing


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_without_permission_is_refused(capsys, tmp_path):
    (tmp_path / "x.json").write_text("")
    (tmp_path / "x.json").chmod(0o400)
    assert "no permission" in complaint(capsys, "--json", str(tmp_path / "x.json"))


@pytest.mark.parametrize("lesson", ["s10_scheduler", "s11_chunked_prefill", "s12_preemption"])
def test_a_mystery_is_not_silently_ignored(capsys, lesson):
    for other in (["--replay", "x"], ["--trace", "x"], ["--model", "tiny"]):
        assert "leave out --" in complaint(capsys, "--mystery", "A", *other, lesson=lesson)


def test_targets_belong_to_runs_that_measure_them(capsys):
    for name in ("ttft", "tpot"):
        for other in (["--replay", "x"], ["--model", "tiny"]):
            said = complaint(capsys, f"--{name}-target", "500", *other, lesson="s13_fairness")
            assert f"leave out --{name}-target" in said
    args = options.parse("s13_fairness", ["--ttft-target", "20"])
    assert (args.ttft_target, args.tpot_target) == (20, 50)


def test_what_a_batcher_does_not_know_is_refused(capsys, tmp_path):
    for lesson in ("s08_static_batching", "s09_continuous_batching"):
        assert options.parse(lesson, ["--config", config(tmp_path, max_num_seqs=3)]).config == {"max_num_seqs": 3}
        assert "knows no num_blocks" in complaint(capsys, "--config", config(tmp_path, num_blocks=3), lesson=lesson)


def test_s08_and_s09_have_no_budget_and_no_mystery(capsys):
    for lesson in ("s08_static_batching", "s09_continuous_batching"):
        assert "unknown option --mystery" in complaint(capsys, "--mystery", "A", lesson=lesson)
        args = options.parse(lesson, [])
        assert (args.trace, args.config, args.json, args.budget, args.solutions) == (None, {}, None, None, False)


@pytest.mark.parametrize("lesson", ["s08_static_batching", "s09_continuous_batching", "s10_scheduler"])
def test_help_has_one_line_for_each_option(lesson):
    done = python(f"solutions/{lesson}.py", "--help", COLUMNS="120")
    assert done.returncode == 0
    listed = [line for line in done.stdout.split("options:")[1].splitlines() if line.strip()]
    assert all(line.startswith("  -") for line in listed), "an option's help takes more than one line"
    assert len(listed) == (11 if lesson == "s10_scheduler" else 6)


def config(tmp_path, **values):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_the_file_overrules_the_defaults_and_the_flags_overrule_the_file(tmp_path):
    path = config(tmp_path, num_blocks=50, policy="shortest", watermark=0)
    args = options.parse(LESSON, ["--config", path, "--blocks", "60", "--budget", "100"])
    made = options.config_from(args, max_num_batched_tokens=2304, num_blocks=4000, block_size=8)
    assert (made.num_blocks, made.policy, made.watermark, made.block_size) == (60, "shortest", 0, 8)
    assert made.max_num_batched_tokens == 100


def test_a_default_number_of_seats_gives_way_to_a_small_budget_but_an_explicit_one_does_not(tmp_path):
    args = options.parse(LESSON, ["--budget", "4"])
    assert options.config_from(args, max_num_seqs=64).max_num_seqs == 4
    assert options.config_from(args).max_num_seqs == 4
    args = options.parse(LESSON, ["--budget", "4", "--config", config(tmp_path, max_num_seqs=8)])
    with pytest.raises(BadConfig, match="token budget 4 is smaller than max_num_seqs 8"):
        options.config_from(args, max_num_seqs=64)


def test_run_turns_errors_into_exit_codes(capsys):
    def fail(error):
        raise error

    assert options.run(lambda: None) == 0
    assert options.run(lambda: 3) == 3
    assert options.run(lambda: fail(CourseError("the pool has 4 blocks"))) == 2
    assert capsys.readouterr().err == "the pool has 4 blocks\n"
    assert options.run(lambda: fail(KeyboardInterrupt())) == 130
    with pytest.raises(ZeroDivisionError):  # a bug is no bad input: it keeps its traceback
        options.run(lambda: 1 // 0)


def test_json_out_writes_null_for_nan_and_says_when_it_can_not(tmp_path):
    args = options.parse(LESSON, ["--json", str(tmp_path / "x.json")])
    options.json_out(args, {"ttft": float("nan"), "rows": [(1, 2.5)]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"ttft": None, "rows": [[1, 2.5]]}
    args.json = str(tmp_path)
    with pytest.raises(CourseError, match="can't write"):
        options.json_out(args, {})
    options.json_out(options.parse(LESSON, []), {})  # nowhere to write: nothing happens


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_for_terminals_only_and_cleans_up(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with options.Progress("trace", 10) as progress:
        progress.update(5)
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    with options.Progress("trace", 2000) as progress:
        for done in range(0, 2000, 10):
            progress.update(done)
    with options.Progress("reading") as progress:
        progress.update(10_000)
    said = sys.stderr.getvalue()
    assert "reading: 10,000\x1b" in said
    assert "trace: 0 of 2,000" in said and said.endswith("\r\x1b[K")
    assert said.count("trace:") < 20  # ten a second at most


SLOW = """
import sys, time
sys.path.insert(0, "solutions")
from kit import options
def work():
    print("started", flush=True)
    {}
sys.exit(options.run(work))
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT between processes")
def test_ctrl_c_leaves_no_traceback():
    command = [sys.executable, "-S", "-c", SLOW.format("time.sleep(60)")]
    with subprocess.Popen(command, cwd=ROOT, env=clean_env(), stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and err == "stopped\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp932", "cp850"])
def test_a_console_that_lacks_a_letter_is_no_error(encoding):
    script = SLOW.format("print('· … €'); raise options.CourseError('→ × é')")
    env = clean_env(PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=ROOT, env=env, capture_output=True, timeout=60)
    assert done.returncode == 2 and b"?" in done.stdout and b"?" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a shell's >&-")
@pytest.mark.parametrize("close", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("lesson", ["s08_static_batching", "s10_scheduler"])
def test_a_closed_stream_is_no_error(tmp_path, close, lesson):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,374,44\n")
    script = f'"$1" -S code/{lesson}.py --trace "$2" {close}'
    done = run("sh", "-c", script, "sh", sys.executable, trace)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "borrowed" not in done.stdout  # what is for stderr must not come out elsewhere
    assert (done.stdout == "") == (">&-" in close.replace("2>&-", ""))


@pytest.mark.skipif(os.name == "nt", reason="no SIGPIPE there")
def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-S", "-c", SLOW.format("[print('x' * 100) for _ in range(100_000)]")]
    with subprocess.Popen(command, cwd=ROOT, env=clean_env(), stdout=-1, stderr=-1, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141 and err == ""


def test_a_run_says_which_exercises_are_borrowed(monkeypatch, capsys):
    from kit import exercise

    monkeypatch.setattr(exercise, "pieces", {(LESSON, "Scheduler.add"): "yours", (LESSON, "Scheduler.preempt"): "borrowed"})
    options.parse(LESSON, [])
    assert capsys.readouterr().err == "s10_scheduler: yours: add | borrowed: preempt\n"

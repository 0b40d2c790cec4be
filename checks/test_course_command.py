"""course.py as a learner meets it: run as a command in a copy of the course, with answers on stdin. No network."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import common, environment, quiz
from place import LESSONS, ROOT, clean_env, copy_course, cut

SECTION = re.compile(r'"([^"]+)"')


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A copy of the course with a fresh cut in code/, as a clone has it on the first day."""
    home = copy_course(tmp_path_factory.mktemp("clone") / "course")
    for path in ROOT.glob("requirements*.txt"):
        shutil.copy(path, home)
    return home


@pytest.fixture
def clone(course) -> Path:
    """The copy, with nothing remembered and nothing written."""
    shutil.rmtree(course / ".course", ignore_errors=True)
    assert command(course, sys.executable, "tools/cut.py", "--force").returncode == 0
    return course


def command(home: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words, cwd=home, env=clean_env(), input=stdin, capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run(home: Path, *words: str, stdin: str = "", code: int = 0) -> str:
    """What course.py says; on stderr if it is to fail with 2."""
    done = command(home, sys.executable, "course.py", *words, stdin=stdin)
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stderr if code == 2 else done.stdout


def write_answers(home: Path, lesson: str) -> None:
    shutil.copy(home / "solutions" / f"{lesson}.py", home / "code" / f"{lesson}.py")


def test_help_names_every_command(clone):
    text = run(clone)
    for name in ("check", "watch", "hint", "quiz", "lab", "status", "run", "test"):
        assert re.search(rf"^  {name} ", text, re.M), name
        assert f"course.py {name}" in run(clone, name, "--help")


@pytest.mark.parametrize("name", ["s10", "10", "S10", "s10_scheduler", "code/s10_scheduler.py"])
def test_a_lesson_has_several_names(clone, name):
    assert "Scheduler.pick_victim" in run(clone, "hint", name)


@pytest.mark.parametrize("name, nearest", [("s21", "s1"), ("23", "s1"), ("schedular", "_scheduler"), ("static", "s08")])
def test_an_unknown_lesson_is_one_sentence_with_the_nearest(clone, name, nearest):
    said = run(clone, "check", name, code=2)
    assert said.count("\n") == 1 and nearest in said and repr(name) in said


@pytest.mark.parametrize(
    "words",
    [
        ["chek"],
        ["check"],
        ["hint", "s10", "99"],
        ["hint", "s10", "evict"],
        ["lab", "s99"],
    ],
)
def test_bad_input_is_one_sentence(clone, words):
    assert run(clone, *words, code=2).count("\n") == 1


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_exercise_has_three_hints_that_show_no_code(lesson):
    answers = {exercise.name for exercise in cut.exercises(ROOT / "solutions" / f"{lesson}.py")}
    layers = common.hints(lesson)
    assert {name.removesuffix(" (extension)") for name in layers} == answers
    for name, texts in layers.items():
        assert len(texts) == 3 and all(texts), name
        assert "?" in texts[0], f"{name}: the first hint is a question"
        assert texts[1].startswith(f'lessons/{lesson}.md, "'), f"{name}: the second hint is a place in the lesson"
        for text in texts:
            assert not re.search(r"[\w\]]\(|\w = |\bself\.\w|```", text), f"{name}: a hint is words, never code: {text}"


@pytest.mark.parametrize("lesson", LESSONS)
def test_hints_point_to_sections_that_exist(lesson):
    text = ROOT / "lessons" / f"{lesson}.md"
    if not text.exists():
        pytest.skip(f"{text.name} is not there yet")
    headings = re.findall(r"^#{2,3} (.+?)\s*$", text.read_text("utf-8"), re.M)
    for name, layers in common.hints(lesson).items():
        for section in SECTION.findall(layers[1]):
            assert section in headings, f"hint 2 of {name}"


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_lesson_marks_the_same_extensions(lesson):
    answers = (ROOT / "solutions" / f"{lesson}.py").read_text("utf-8")
    extensions = [name.removesuffix(" (extension)") for name in common.hints(lesson) if name.endswith(" (extension)")]
    assert answers.count('"""Extension.') == len(extensions)


def test_hints_come_one_layer_at_a_time_and_are_remembered(clone):
    layers = common.hints("s10_scheduler")["Scheduler.preempt"]
    words = [" ".join(layer.split()[:4]) for layer in layers]
    for n in (1, 2, 3, 3):
        text = run(clone, "hint", "s10", "preempt")
        assert [word in text for word in words] == [number <= n for number in (1, 2, 3)]
    listing = run(clone, "hint", "s10")
    assert re.search(r"Scheduler.preempt +all hints seen", listing)
    assert re.search(r"Scheduler.add +next: hint 1, the question", listing)


def test_status_counts_what_is_written_and_says_what_comes_next(clone):
    text = run(clone, "status")
    assert re.search(r"^s10_scheduler +0 of 6 +0 of 3 +not checked +not taken$", text, re.M)
    first = common.exercises(LESSONS[0])[0].name
    assert f"next: write {first} at code/{LESSONS[0]}.py:" in text
    core = sum(not exercise.extension for exercise in common.exercises(LESSONS[0]))
    write_answers(clone, LESSONS[0])
    text = run(clone, "status")
    assert re.search(rf"^{LESSONS[0]} +{core} of {core} ", text, re.M)
    assert f"next: python3 course.py check {LESSONS[0][:3]}" in text


@pytest.mark.parametrize("lesson", LESSONS)
def test_check_on_a_fresh_cut_ends_in_todo_and_the_next_thing_to_do(clone, lesson):
    text = run(clone, "check", lesson[:3], code=1)
    assert "FAIL" not in text
    for exercise in cut.exercises(clone / "code" / f"{lesson}.py"):
        assert f"TODO  code/{lesson}.py:{exercise.start + 1} {exercise.name}" in text
    first = next(iter(common.hints(lesson)))
    assert f"next: write {first} at code/{lesson}.py:" in text
    assert f"read   {common.section(lesson, first)}" in text
    assert f"course.py hint {lesson[:3]} 1" in text
    builds = re.search(r"^from s\d\d_", (clone / f"code/{lesson}.py").read_text("utf-8"), re.M)
    assert ("lent from solutions/: " in text) == bool(builds), "a lesson that imports no other one is lent nothing"


def test_check_turns_green_with_the_answers_and_status_knows(clone):
    write_answers(clone, "s09_continuous_batching")
    text = run(clone, "check", "s09")
    assert "FAIL" not in text and "TODO" not in text and "next: " in text
    assert re.search(r"^s09_continuous_batching +4 of 4 +(\d+) of \1 +not taken$", run(clone, "status"), re.M)
    with (clone / "code" / "s09_continuous_batching.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert re.search(r"^s09_continuous_batching .* of \d+ \? ", run(clone, "status"), re.M)


def test_check_shows_a_wrong_answer_in_red_with_its_message_and_how_to_run_it_alone(clone):
    file = clone / "code" / "s09_continuous_batching.py"
    write_answers(clone, "s09_continuous_batching")
    text = file.read_text("utf-8")
    assert text.count("while self.can_admit():") == 1
    file.write_text(text.replace("while self.can_admit():", "if self.can_admit():"), "utf-8")
    said = run(clone, "check", "s09", code=1)
    assert "FAIL  test_" in said and "wrong" in said
    alone = re.search(r"course.py check s09 -k (\w+)", said)
    assert alone and alone[1] in run(clone, "check", "s09", "-k", alone[1], code=1)


def test_a_file_that_is_not_python_is_named_with_its_line(clone):
    file = clone / "code" / "s08_static_batching.py"
    lines = file.read_text("utf-8").splitlines()
    file.write_text("\n".join([*lines, "def x(:", ""]), "utf-8")
    assert f"code/s08_static_batching.py:{len(lines) + 1}" in run(clone, "check", "s08", code=2)
    assert f"code/s08_static_batching.py:{len(lines) + 1}" in run(clone, "status")


def change(home: Path, lesson: str, old: str, new: str, source: str = "code") -> None:
    """Replace a text that stands there once, in the learner's file or in the answers put there."""
    text = (home / source / f"{lesson}.py").read_text("utf-8")
    assert text.count(old) == 1, old
    (home / "code" / f"{lesson}.py").write_text(text.replace(old, new), "utf-8")


def test_a_deleted_exercise_is_named_not_counted_as_absent(clone):
    path = "code/s10_scheduler.py"
    change(clone, "s10_scheduler", "    @exercise\n    def preempt(", "    def preempt(")
    sentence = f"{path}: `@exercise` above Scheduler.preempt is gone; put it back (git diff {path} shows it)\n"
    assert run(clone, "check", "s10", code=2) == sentence
    assert sentence in run(clone, "status")
    change(clone, "s10_scheduler", "class ThrashMeter:", "class Meter:", "solutions")
    assert f"{path}: ThrashMeter.observe is gone" in run(clone, "check", "s10", code=2)
    text = (clone / path).read_text("utf-8")
    (clone / path).write_text(re.sub(r"^ *@exercise\n", "", text, flags=re.M), "utf-8")
    said = run(clone, "check", "s10", code=2)
    assert said.count("\n") == 1 and "`@exercise` above AgedPriority.key" in said and "and 7 more are gone" in said
    assert said in run(clone, "status")


@pytest.mark.parametrize(("end", "words"), [(b"# caf\xe9\n", "is not UTF-8"), (b"# \0\n", "has a NUL byte")])
def test_bytes_that_are_no_source_are_named_with_their_line(clone, end, words):
    file = clone / "code" / "s08_static_batching.py"
    line = file.read_bytes().count(b"\n") + 1
    file.write_bytes(file.read_bytes() + end)
    said = run(clone, "check", "s08", code=2)
    assert said.startswith(f"code/s08_static_batching.py:{line} ") and words in said and said.count("\n") == 1
    assert said in run(clone, "status")


def test_a_loop_without_end_comes_to_an_end_and_its_message_is_shown(clone):
    change(clone, "s10_scheduler", "            self.waiting.pop()\n", "", "solutions")
    start = time.perf_counter()
    said = run(clone, "check", "s10", "--timeout", "1", code=1)
    assert time.perf_counter() - start < 15
    shown = said[said.index("      admit_pass() made no progress for 1 s") :]
    assert "the other tests would hang too" in shown and re.search(r"\d+ wrong, \d+ not run$", shown, re.M)


def test_only_a_name_that_no_test_has_is_called_so(clone):
    assert run(clone, "check", "s10", "-k", "no_such_word", code=2) == "no test has such a name\n"
    (clone / "code" / "s10_scheduler.py").open("a", encoding="utf-8").write("\nimport os\nos._exit(5)\n")
    assert run(clone, "check", "s10", code=2) == "pytest stopped with exit code 5; its output is above\n"


@pytest.mark.skipif(os.name == "nt", reason="a shell's >&-")
@pytest.mark.parametrize("close", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(clone, close):
    done = command(clone, "sh", "-c", f'"$1" course.py status {close}', "sh", sys.executable)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_takes_less_than_three_seconds(clone):
    run(clone, "check", "s10", code=1)  # compiles what it imports
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run(clone, "check", "s10", code=1)
        times.append(time.perf_counter() - start)
    assert min(times) < 3, f"course.py check s10 took {min(times):.1f} s"


def test_run_passes_options_on_and_installs_nothing(clone):
    done = command(clone, sys.executable, "-S", "course.py", "run", "s10", "--help")
    assert done.returncode == 0 and "--policy" in done.stdout
    done = command(clone, sys.executable, "course.py", "run", "s10", "--budget", "0")
    assert done.returncode == 2 and "0" in done.stderr
    done = command(clone, sys.executable, "-S", "course.py", "run", "s17")
    assert done.returncode == 0 and "7. What the compiler makes of it" in done.stdout, "it leaves out what it can't do"
    done = command(clone, sys.executable, "-S", "course.py", "run", "s18")
    assert done.returncode == 2 and "which this Python lacks" in done.stderr and "sys_platform" not in done.stderr
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_quiz_gives_the_score_and_what_to_read_again(clone, wrong):
    questions = [
        {
            "question": "One?",
            "type": "multiple_choice",
            "section": "Two passes",
            "answers": [
                {"answer": "yes", "correct": True, "feedback": "Indeed."},
                {"answer": "no", "correct": False, "feedback": "Look again."},
            ],
        },
        {
            "question": "Which?",
            "type": "many_choice",
            "section": "The way back",
            "answers": [{"answer": str(n), "correct": n != 2, "feedback": f"About {n}."} for n in range(3)],
        },
        {
            "question": "How many?",
            "type": "numeric",
            "section": "Who is next",
            "answers": [
                {"type": "value", "value": 6, "correct": True, "feedback": "Prompt and output."},
                {"type": "default", "correct": False, "feedback": "Count again."},
            ],
        },
    ]
    (clone / "quizzes" / "s10_scheduler.json").write_text(json.dumps(questions), "utf-8")
    typed = []
    for question in questions[:2]:
        shuffled = quiz.choices(question)
        typed.append(" ".join(str(n) for n, answer in enumerate(shuffled, 1) if answer["correct"] != bool(wrong)))
    typed.append("5" if wrong else "6")
    text = run(clone, "quiz", "s10", stdin="\n".join(["what", "7", *typed, ""]))  # the first two are no answers
    assert f"s10_scheduler: {0 if wrong else 3} of 3 right" in text
    for question in questions:
        assert (f'read again: lessons/s10_scheduler.md, "{question["section"]}"' in text) == bool(wrong)
    assert ("Count again." if wrong else "Prompt and output.") in text
    assert f"{0 if wrong else 3} of 3" in run(clone, "status")


def test_a_quiz_that_is_broken_off_keeps_no_score(clone):
    assert "stopped at question 1" in run(clone, "quiz", "s09", code=1)
    assert "not taken" in run(clone, "status")


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to a child")
def test_watch_checks_again_on_save_and_ends_quietly(clone):
    file = clone / "code" / "s08_static_batching.py"
    with subprocess.Popen(
        [sys.executable, "course.py", "watch", "s08"], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        try:
            for change in (True, False):
                assert any(line.startswith("watching") for line in process.stdout)
                if change:
                    file.write_text(file.read_text("utf-8") + "\n", "utf-8")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_no_colours_in_a_pipe(clone):
    assert "\033" not in run(clone, "status") + run(clone, "check", "s08", code=1)


def test_requirements_are_compared_by_name_and_version():
    assert environment.installed("pytest>=1.0") and environment.installed("pytest-timeout")
    assert not environment.installed("pytest>=999")
    assert not environment.installed("pytest<2")
    assert not environment.installed("no-such-distribution-anywhere>=1")
    names = [line.partition(">")[0] for line in environment.requirement_lines(ROOT / "requirements-dev.txt")]
    assert {"pytest", "numpy", "torch"} <= set(names)
    assert ('triton>=3.7; sys_platform == "linux"' in environment.requirement_lines(ROOT / environment.KERNELS)) == (
        sys.platform == "linux"
    )


@pytest.mark.parametrize("gpu", [False, True])
def test_torch_is_a_cpu_build_where_no_gpu_is_seen(monkeypatch, tmp_path, gpu):
    commands = []
    monkeypatch.setattr(environment, "has_gpu", lambda: gpu)
    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(
        environment.subprocess,
        "run",
        lambda command, **how: commands.append(command) or subprocess.CompletedProcess(command, 0, "", ""),
    )
    for file in (environment.KERNELS, "requirements-dev.txt", "requirements-test.txt"):
        environment.pip_install(file)
    for command, file in zip(commands, (environment.KERNELS, "requirements-dev.txt", "requirements-test.txt")):
        constrained = not gpu and file != "requirements-test.txt"
        assert (command[-2:] == ["-c", "constraints-cpu.txt"]) == constrained and file in command
    assert (ROOT / "constraints-cpu.txt").exists()
    (tmp_path / "lib/python3.11/site-packages/torch").mkdir(parents=True)
    environment.pip_install(environment.KERNELS)
    assert "-c" not in commands[-1], "a torch that is there stays"


def test_a_gpu_is_seen_by_its_tool_and_nothing_goes_wrong_without(monkeypatch, tmp_path):
    if environment.has_gpu():
        pytest.skip("this machine has a GPU: what is said without one can't be seen")
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setattr(environment.shutil, "which", lambda name: str(tool))
    assert not environment.has_gpu(), "a tool that can't be run"
    for words, seen in (("GPU 0: a name (UUID: x)", True), ("NVIDIA-SMI has failed: no driver", False)):
        monkeypatch.setattr(
            environment.subprocess,
            "run",
            lambda command, words=words, **how: subprocess.CompletedProcess(command, 0, words, ""),
        )
        assert environment.has_gpu() == seen

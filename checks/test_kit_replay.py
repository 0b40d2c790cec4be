"""kit.replay: the field cases give their numbers, other names are translated, and a bad file is one sentence."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import sys

import pytest
from place import ROOT, python

sys.path.insert(0, str(ROOT / "solutions"))

from kit.config import Config
from kit.errors import CourseError
from kit.replay import replay, replay_file, translate
from kit.workloads import read_workloads

CASES = ROOT / "tests" / "data" / "field_cases.json"
ALL = {name: case for name, case in read_workloads(CASES) if "config" in case}
OURS = {name: case for name, case in ALL.items() if case["scheduler"] <= "s10"}
SCHEDULERS = {
    "s10": ("s10_scheduler", "Scheduler"),
    "s11": ("s11_chunked_prefill", "ChunkedScheduler"),
    "s12": ("s12_preemption", "SwappingScheduler"),
    "s13": ("s13_fairness", "FairScheduler"),
}


def of(lesson):
    """What builds a lesson's scheduler."""
    module, name = SCHEDULERS[lesson]
    return getattr(importlib.import_module(module), name)


def make(config):
    return of("s10")(config)


def numbers(lesson):
    """The cases that a lesson must replay with the right numbers: its own and those of every lesson before it."""
    return [name for name, case in ALL.items() if case["scheduler"] <= lesson]


def run(path, make=make, lesson="s10"):
    """(exit code, decoded lines of stdout, stderr)"""
    out, err = io.StringIO(), io.StringIO()
    code = replay_file(path, make, lesson, out, err)
    return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


@pytest.mark.parametrize(("lesson", "name"), [(lesson, name) for lesson in SCHEDULERS for name in numbers(lesson)])
def test_a_field_case_gives_its_numbers(lesson, name):
    expect = ALL[name]["expect"]
    result = replay(ALL[name], of(lesson), lesson)
    assert {id: result.requests[id] for id in expect["requests"]} == expect["requests"]
    assert result.totals == {key: expect[key] for key in ("end", "steps", "preemptions", "free_blocks_at_end")}
    schedule = expect.get("schedule", [])
    assert result.schedule[: len(schedule)] == schedule


@pytest.mark.parametrize("lesson", ["s11", "s12", "s13"])
@pytest.mark.parametrize("name", OURS)
def test_with_chunks_off_and_a_whole_prompt_gate_a_later_lesson_is_s10(lesson, name):
    config = {"chunked_prefill": False, "admission": "full_prompt", **OURS[name]["config"]}
    assert replay({**OURS[name], "config": config}, of(lesson), lesson) == replay(OURS[name], make)


@pytest.mark.parametrize(("lesson", "count"), [("s10", 11), ("s11", 23), ("s12", 26), ("s13", 36)])
def test_the_file_is_replayed_case_by_case_and_what_is_for_later_is_skipped_by_name(lesson, count):
    code, lines, err = run(CASES, of(lesson), lesson)
    assert code == 0
    assert [line["name"] for line in lines] == numbers(lesson) and len(lines) == count
    for line in lines:
        assert line["requests"].items() >= ALL[line["name"]]["expect"]["requests"].items()
        assert set(line) == {"name", "requests", "totals"}
    skipped = err.splitlines()
    assert len(skipped) == sum(1 for _ in read_workloads(CASES)) - count
    assert "skipped C04/prefix_caching: it is for s14" in skipped and "skipped C15: it has no config" in skipped


@pytest.mark.parametrize(
    ("lesson", "skipped"),
    [
        ("s10", "C01: it is for s11"),
        ("s11", "C04: it is for s12"),
        ("s12", "C19: it is for s13"),
        ("s13", "C10: it is for s14"),
    ],
)
def test_the_command_replays_the_cases_and_keeps_stdout_for_the_lines(lesson, skipped):
    done = python("course.py", "run", lesson, "--solutions", "--replay", CASES)
    assert done.returncode == 0 and f"skipped {skipped}" in done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["name"] for line in lines] == numbers(lesson)
    for line in lines:
        expect = ALL[line["name"]]["expect"]
        assert line["requests"].items() >= expect["requests"].items() and line["totals"].items() <= expect.items()


CONFIG = {"block_size": 4, "num_blocks": 8, "max_num_seqs": 4, "max_num_batched_tokens": 16}


def workload(*requests, aborts=(), **config):
    return {"config": {**CONFIG, **config}, "requests": list(requests), "aborts": list(aborts)}


def one(**change):
    return {"id": "a", "arrival": 0, "prompt_len": 4, "max_tokens": 2, **change}


RUNNING = workload(
    *({"id": name, "prompt_len": prompt, "max_tokens": output}
      for name, prompt, output in (("A", 3, 6), ("B", 4, 5), ("C", 5, 3), ("D", 2, 3))),
    num_blocks=5, max_num_batched_tokens=8,
)  # fmt: skip


def test_the_running_example_step_by_step():
    result = replay(RUNNING, make)
    assert [entry["tokens"] for entry in result.schedule] == [
        {"A": 3, "B": 4}, {"A": 1, "B": 1, "C": 5}, {"A": 1, "B": 1}, {"A": 1, "B": 1}, {"A": 1, "B": 1},
        {"A": 1, "C": 6}, {"C": 1, "D": 2}, {"D": 1}, {"D": 1},
    ]  # fmt: skip
    assert result.requests["C"]["recomputed_tokens"] == 5 and result.requests["C"]["prefix_hit_tokens_at_admission"] == [
        0,
        0,
    ]
    assert result.totals == {"end": "done", "steps": 9, "preemptions": 1, "free_blocks_at_end": 5}


def test_its_twin_is_stuck_after_six_steps_that_compute_nothing():
    twin = [one(id=n, prompt_len=p, max_tokens=m) for n, p, m in (("A", 4, 8), ("B", 4, 8), ("D", 2, 3))]
    result = replay(workload(*twin, num_blocks=5, max_num_batched_tokens=8, reject_unservable=False), make)
    assert result.totals["end"] == "stuck"
    assert [bool(entry["tokens"]) for entry in result.schedule[-7:]] == [True] + [False] * 6


def test_idle_steps_count_and_an_arrival_ends_them():
    result = replay(workload(one(arrival=3)), make)
    assert result.totals["steps"] == 5 and result.requests["a"]["first_token_step"] == 3
    assert result.schedule[0] == {"step": 0, "tokens": {}, "free_blocks": 8}


def test_arrivals_join_in_the_order_of_arrival_then_position():
    result = replay(workload(one(id="late", arrival=1), one(id="x"), one(id="y"), max_num_seqs=1), make)
    order = sorted(result.requests, key=lambda name: result.requests[name]["first_token_step"])
    assert order == ["x", "y", "late"]


def test_an_abort_comes_before_the_step_and_one_of_nobody_is_passed_over():
    aborts = [{"id": "a", "step": 2}, {"id": "nobody", "step": 0}]
    result = replay(workload(one(max_tokens=9), aborts=aborts), make)
    assert result.requests["a"]["finish_reason"] == "abort" and result.requests["a"]["output_tokens"] == 2
    assert result.requests["a"]["finish_step"] == 2 and result.totals["free_blocks_at_end"] == 8


def test_eos_at_ends_a_request_on_that_output():
    row = replay(workload(one(max_tokens=9, eos_at=3)), make).requests["a"]
    assert (row["finish_reason"], row["output_tokens"], row["finish_step"]) == ("stop", 3, 2)


def test_max_steps_end_a_run():
    assert replay(workload(one(max_tokens=9), max_steps=4), make).totals["end"] == "max"
    assert replay(workload(one(max_tokens=4), max_steps=4), make).totals["end"] == "done"


def test_an_id_may_be_used_again_but_not_while_its_owner_lives():
    result = replay(workload(one(), one(arrival=5)), make)
    assert list(result.requests) == ["a", "a again"] and result.requests["a again"]["finish_step"] == 6
    with pytest.raises(CourseError, match="request a is live already"):
        replay(workload(one(), one()), make)


def test_the_watermark_is_zero_unless_given():
    seen = []
    replay(workload(one(), num_blocks=1000), lambda config: seen.append(config) or make(config))
    replay(workload(one(), num_blocks=1000, watermark=0.1), lambda config: seen.append(config) or make(config))
    assert [config.watermark_blocks for config in seen] == [0, 100]


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({"num_gpu_blocks": 9}, {"num_blocks": 8}),
        ({"enable_chunked_prefill": False, "enable_prefix_caching": False}, {}),
        ({"chunked_prefill": False, "prefix_caching": False, "cpu_blocks": 0, "admission": "full_prompt"}, {}),
        ({"scheduler_reserve_full_isl": True, "long_prefill_token_threshold": None}, {}),
    ],
)
def test_other_names_and_what_s10_does_anyway_are_accepted(options, known):
    assert translate(options, "s10") == known


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunked_prefill": True}, "chunked_prefill is true; s10 knows only false there, more comes with s11"),
        ({"enable_chunked_prefill": True}, "enable_chunked_prefill is true"),
        ({"prefix_caching": True}, "more comes with s14"),
        ({"admission": "chunk"}, 'admission is "chunk"; s10 knows only "full_prompt"'),
        ({"cpu_blocks": 4}, "s12"),
        ({"num_gpu_blocks": "many"}, "num_gpu_blocks is 'many'"),
        ({"num_gpu_blocks": 1}, "^num_gpu_blocks is 1; it must be at least 2"),
        ({"num_gpu_blocks": 9, "num_blocks": 8}, "num_gpu_blocks and num_blocks set the same thing"),
        ({"num_blocks": 8, "num_gpu_blocks": 9}, "num_blocks and num_gpu_blocks set the same thing"),
    ],
)
def test_an_option_that_s10_lacks_is_refused_by_name(options, words):
    with pytest.raises(CourseError, match=words):
        translate(options, "s10")


def test_from_s11_on_absent_options_mean_the_defaults_of_the_conventions():
    after = translate({}, "s11")
    assert after["chunked_prefill"] is True and after["admission"] == "chunk" and "prefix_caching" not in after
    assert translate({"chunked_prefill": False}, "s11")["chunked_prefill"] is False


@pytest.mark.parametrize(
    ("lesson", "options", "words"),
    [
        ("s11", {"chunked_prefill": "yes"}, "chunked_prefill is 'yes'; it must be true or false"),
        ("s11", {"enable_chunked_prefill": []}, r"chunked_prefill is \[\]; it must be true or false"),
        ("s11", {"scheduler_reserve_full_isl": "yes"}, "scheduler_reserve_full_isl is 'yes'; it must be true or false"),
        ("s11", {"prefill_first": 1}, "prefill_first is 1; it must be true or false"),
        ("s11", {"long_prefill_token_threshold": -1}, "long_prefill_token_threshold is -1; it must be at least 0"),
        ("s11", {"long_prefill_token_threshold": "4"}, "long_prefill_token_threshold is '4'; it must be a whole number"),
        ("s11", {"long_prefill_token_threshold": 20, "max_model_len": 16}, "20 is beyond max_model_len 16"),
        ("s11", {"admission": "all"}, "admission 'all' is unknown; choose chunk, full_prompt, to_completion"),
        ("s11", {"admission": "to_completion"}, "s11 knows chunk and full_prompt, more comes with s13"),
        ("s12", {"admission": "to_completion"}, "s12 knows chunk and full_prompt, more comes with s13"),
        ("s11", {"cpu_blocks": 4}, "cpu_blocks is 4; s11 knows only 0 there, more comes with s12"),
        ("s12", {"cpu_blocks": -1}, "cpu_blocks is -1; it must be at least 0"),
        ("s12", {"cpu_blocks": float("nan")}, "cpu_blocks is nan; it must be a whole number"),
        ("s12", {"cpu_blocks": True}, "cpu_blocks is True; it must be a whole number"),
        ("s12", {"skip_blocked": True}, "skip_blocked is true; s12 knows only false there, more comes with s13"),
        ("s12", {"policy": "priority", "aging_per_step": 0.5}, "aging_per_step is 0.5; s12 knows only 0 there"),
        ("s13", {"skip_blocked": "no"}, "skip_blocked is 'no'; it must be true or false"),
        ("s12", {"prefill_first": True, "cpu_blocks": 4}, "prefill_first and cpu_blocks 4 exclude each other"),
        ("s13", {"aging_per_step": 1e308}, "aging_per_step is 1e.308; it must be 0 or from 1e-15 to 1e.09"),
        ("s13", {"policy": "priority", "aging_per_step": -0.1}, "aging_per_step is -0.1; it must be a number, at least 0"),
        ("s13", {"policy": "priority", "aging_per_step": "0.1"}, "aging_per_step is '0.1'; it must be a number"),
        ("s13", {"policy": "priority", "aging_per_step": float("nan")}, "aging_per_step is nan; it must be a number"),
        ("s13", {"prefix_caching": True}, "prefix_caching is true; s13 knows only false there, more comes with s14"),
        ("s13", {"enable_prefix_caching": "yes"}, 'enable_prefix_caching is "yes"; s13 knows only false there'),
        ("s13", {"cpu_block": 4}, "unknown option 'cpu_block'; did you mean 'cpu_blocks'?"),
    ],
)
def test_a_later_option_with_a_wrong_value_is_one_sentence(lesson, options, words):
    with pytest.raises(CourseError, match=words) as caught:
        replay(workload(one(), **options), of(lesson), lesson)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lesson", SCHEDULERS)
def test_null_is_the_same_as_leaving_an_option_out(lesson):
    nothing = dict.fromkeys(
        ("long_prefill_token_threshold", "cpu_blocks", "aging_per_step", "skip_blocked", "prefix_caching", "admission",
         "enable_chunked_prefill")
    )  # fmt: skip
    assert replay(workload(one(), **nothing), of(lesson), lesson) == replay(workload(one()), of(lesson), lesson)


def files(tmp_path):
    first, second = workload(one()), {"name": "second", **workload(one(id="b"))}
    text = {
        "one.json": json.dumps(first, indent=1),
        "list.json": json.dumps([first, second]),
        "cases.json": json.dumps({"conventions": {}, "cases": [first, second]}),
        "lines.jsonl": f"{json.dumps(first)}\n\n{json.dumps(second)}\n",
    }
    for name, content in text.items():
        (tmp_path / name).write_text(content, "utf-8")
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    return text


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_workload_a_list_cases_and_lines_are_read_the_same_also_packed(tmp_path, packed):
    for name in files(tmp_path):
        code, lines, err = run(tmp_path / f"{name}{packed}")
        assert (code, err) == (0, ""), name
        assert [list(line["requests"]) for line in lines] == ([["a"]] if name == "one.json" else [["a"], ["b"]])
    assert [line["name"] for line in run(tmp_path / f"lines.jsonl{packed}")[1]] == ["line 1", "second"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["is empty"]),
        (b"\x89PNG\xff\xfe", ["is not text"]),
        ('{"config": {}, "requests": [', ["is not JSON", "line 1 column 29"]),
        ('{"config": {}}\n{"config"', ["line 2 is not JSON"]),
        (gzip.compress(b"[]" * 999)[:-9], ["can't be read"]),
        ("[" * 100_000, ["nested too deeply"]),
        ("[3]", ["item 1", "is 3; it must be an object"]),
        ('{"scheduler": 10}', ["scheduler is 10"]),
        ('{"id": "X", "variants": 1}', ["variants is 1; it must be a list"]),
        (json.dumps({**workload(one()), "requests": None}), ["requests is missing"]),
        (json.dumps(workload(one(), block_sise=4)), ["unknown option 'block_sise'", "'block_size'"]),
        (json.dumps(workload(one(), num_blocks=0)), ["num_blocks is 0"]),
        (json.dumps(workload(one(), max_num_batched_tokens=2)), ["token budget 2 is smaller than max_num_seqs 4"]),
        (json.dumps(workload(one(), max_steps=0)), ["max_steps is 0"]),
        (json.dumps(workload(one(), chunked_prefill=True)), ["chunked_prefill is true", "s11"]),
        (json.dumps(workload(one(max_token=2))), ["request a", "unknown key 'max_token'", "'max_tokens'"]),
        (json.dumps(workload(one(prompt=[1]))), ["either prompt or prompt_len"]),
        (json.dumps(workload(one(prompt_len=0))), ["its prompt is empty"]),
        (json.dumps(workload(one(prompt_len=-4))), ["prompt_len is -4"]),
        (json.dumps(workload(one(prompt_len=10**20))), ["prompt_len is 1000", "at most 1,000,000,000"]),
        (json.dumps(workload(one(max_tokens=10**9 + 1))), ["max_tokens is 1000000001", "at most 1,000,000,000"]),
        (json.dumps(workload(one(priority=10**400))), ["priority is 1000", "between -1,000,000,000 and 1,000,000,000"]),
        (json.dumps(workload(one(prompt_len="4"))), ["prompt_len is '4'; it must be a whole number"]),
        (json.dumps(workload({"id": "a", "prompt": [1, "x"], "max_tokens": 1})), ["a token of its prompt is 'x'"]),
        (json.dumps(workload(one(max_tokens=0))), ["max_tokens is 0"]),
        (json.dumps(workload({"id": "a", "prompt_len": 4})), ["max_tokens is missing"]),
        (json.dumps(workload(one(arrival=-1))), ["arrival is -1; it must be at least 0"]),
        (json.dumps(workload(one(arrival=0.5))), ["arrival is 0.5; it must be a whole number"]),
        (json.dumps(workload(one(arrival=float("nan")))), ["arrival is nan"]),
        (json.dumps(workload(one(priority=float("nan")))), ["priority is nan"]),
        (json.dumps(workload(one(priority="high"))), ["priority is 'high'"]),
        (json.dumps(workload(one(id=7))), ["id is 7; it must be a text"]),
        (json.dumps(workload("a")), ["request number 1 is 'a'; it must be an object"]),
        (json.dumps(workload(one(), one())), ["request a is live already"]),
        (json.dumps(workload(one(), aborts=[{"id": "a"}])), ["an abort's step is missing"]),
        *((json.dumps(workload(one(eos_at=bad))), ["eos_at is", "it must be a whole number"]) for bad in (False, "", [], {})),
        (json.dumps(workload({"id": "a", "prompt": [1, 2**63], "max_tokens": 1})), ["request a", "is 9223372036854775808"]),
        (json.dumps(workload({"id": "a", "prompt": [-1], "max_tokens": 1})), ["request a", "a token of its prompt is -1"]),
        (json.dumps(workload(one(priority=1e300))), ["priority is 1e+300", "between"]),
        (json.dumps(workload(one(arrival=10**40))), ["arrival is 1000", "at most"]),
        (json.dumps(workload(one(id="a\nb", max_tokens=0))), ["request a\\nb: max_tokens is 0"]),
        (json.dumps(workload(one(id="a\nb"), one(id="a\nb"))), ["request a\\nb is live already"]),
        ('{"config": {}, "config": {}, "requests": []}', ["the key 'config' stands twice"]),
        ('{"config": {}}\n{"config": {}, "config": 1}', ["line 2: the key 'config' stands twice"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_that_names_the_file(tmp_path, content, words):
    path = tmp_path / "case.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, lines, err = run(path)
    assert (code, lines) == (2, [])
    for word in ["case.json", *words]:
        assert word in err
    assert err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("lesson", ["s10", "s13"])
def test_who_runs_and_computes_nothing_is_stuck_like_who_waits(lesson):
    class Idle(of(lesson)):
        def decode_pass(self, budget, requests=None):
            return budget

    found = replay(workload(one(max_tokens=5)), Idle, lesson)
    assert found.totals["end"] == "stuck" and found.totals["steps"] == 7


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    assert run(tmp_path / "x.json") == (2, [], f"workload file {tmp_path / 'x.json'} does not exist\n")
    assert "is a directory" in run(tmp_path)[2]


def test_a_scheduler_that_breaks_is_reported_with_its_case_and_the_next_one_runs(tmp_path):
    def broken(config: Config):
        if config.num_blocks == 8:
            raise IndexError("list index out of range")
        return make(config)

    path = tmp_path / "two.json"
    path.write_text(json.dumps([{"id": "C98", **workload(one())}, {"id": "C99", **workload(one(), num_blocks=9)}]))
    code, lines, err = run(path, broken)
    assert code == 2 and [line["name"] for line in lines] == ["C99"]
    assert "C98: the scheduler raised IndexError: list index out of range" in err


def test_a_case_for_s10_with_an_option_that_s10_lacks_is_an_error_and_one_for_s11_is_not(tmp_path):
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"id": "X", "scheduler": "s11", **workload(one(), chunked_prefill=True)}))
    assert run(path) == (0, [], "skipped X: it is for s11\n")
    path.write_text(json.dumps({"id": "X", "scheduler": "s10", **workload(one(), chunked_prefill=True)}))
    assert run(path)[0] == 2

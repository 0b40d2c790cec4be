"""kit.traces: the stories are what the lessons say, random lengths are what the docstrings say, and bad files are named."""

from __future__ import annotations

import gc
import io
import re
import sys
from random import Random
from statistics import mean, stdev

import pytest
from place import ROOT

sys.path.insert(0, str(ROOT / "solutions"))

from kit import traces
from kit.config import Config
from kit.errors import BadTrace
from kit.report import percentile
from kit.request import Count


def lengths(requests):
    return [(len(request.prompt), request.max_tokens) for request in requests]


@pytest.mark.parametrize(
    ("policy", "burst", "finished"),
    [("fcfs", False, 14), ("fcfs", True, 14), ("shortest", False, 55), ("priority", True, 30)],
)
def test_story_a_leaves_the_requests_behind_that_it_is_told_for(policy, burst, finished):
    from s08_static_batching import Engine
    from s10_scheduler import Scheduler

    config = Config(max_num_batched_tokens=512, max_num_seqs=64, num_blocks=2000, policy=policy, reject_unservable=False)
    report = Engine(Scheduler(config), None, traces.story_a(burst=burst)).run()
    assert (len(report.finished), len(report.unfinished)) == (finished, 60 - finished)


@pytest.mark.parametrize("seed", range(20))
def test_story_a_has_its_five_long_prompts_under_every_seed(seed):
    requests = traces.story_a(seed=seed)
    assert {i: len(r.prompt) for i, r in enumerate(requests) if len(r.prompt) > 512} == traces.LONG_PROMPTS
    assert all(16 <= len(r.prompt) <= 400 for i, r in enumerate(requests) if i not in traces.LONG_PROMPTS)
    assert all(20 <= r.max_tokens <= 120 and r.priority == i % 3 for i, r in enumerate(requests))


def test_story_b_is_the_twenty_requests():
    requests = traces.story_b()
    assert [request.id for request in requests] == [f"r{i}" for i in range(20)]
    assert lengths(requests)[:3] == [(1461, 78), (1873, 138), (44, 181)]
    assert [request.arrival_ns for request in requests][-2:] == [7_032_000_000, 7_562_000_000]
    assert sum(len(request.prompt) > 128 for request in requests) == 13
    early = traces.story_b(order_first=("r2", "r4", "r6"))
    assert [(request.id, request.arrival_ns) for request in early[:4]] == [("r2", 0), ("r4", 0), ("r6", 0), ("r0", 0)]
    assert sorted(request.id for request in early) == sorted(request.id for request in requests)


def test_story_c_gives_long_prompts_the_later_class():
    requests = traces.story_c(2000, 1)
    for request in requests:
        low, high = (1000, 1900) if request.priority else (32, 256)
        assert low <= len(request.prompt) <= high
    assert mean(request.priority for request in requests) == pytest.approx(0.2, abs=0.03)
    outputs = [request.max_tokens for request in requests]
    assert min(outputs) >= 1 and max(outputs) == 400 and mean(outputs) == pytest.approx(98.6, rel=0.05)
    assert {request.arrival_ns for request in requests} == {0}
    assert traces.story_c(2000, 1, rate=10)[-1].arrival_ns == pytest.approx(200e9, rel=0.1)


def test_story_d_e_f_stay_within_their_lengths():
    mixed, small = traces.story_d(1000, 1), traces.story_d(1000, 1, rate=25)
    assert mean(len(request.prompt) >= 400 for request in mixed) == pytest.approx(0.2, abs=0.04)
    assert all(16 <= p <= 160 or 400 <= p <= 850 for p, _ in lengths(mixed))
    assert all(16 <= p <= 160 and 16 <= o <= 96 for p, o in lengths(small))
    assert small[-1].arrival_ns == pytest.approx(40e9, rel=0.1)
    assert all(50 <= p <= 300 and 50 <= o <= 200 for p, o in lengths(traces.story_e()))
    assert mean(o for _, o in lengths(traces.story_f(5000, 1))) == pytest.approx(100, rel=0.05)


def test_the_running_example_and_its_twin():
    assert {r.id: (len(r.prompt), r.max_tokens) for r in traces.running_example()} == {
        "A": (3, 6), "B": (4, 5), "C": (5, 3), "D": (2, 3)}  # fmt: skip
    assert {r.id: (len(r.prompt), r.max_tokens) for r in traces.evil_twin()} == {"A": (4, 8), "B": (4, 8), "D": (2, 3)}


@pytest.mark.parametrize("make", [traces.story_a, traces.story_c, traces.story_d, traces.story_e, traces.story_f])
def test_a_seed_gives_the_same_fresh_requests_each_time(make):
    once, again, other = make(seed=7), make(seed=7), make(seed=8)
    assert lengths(once) == lengths(again) != lengths(other)
    assert all(a is not b and isinstance(a.output, Count) for a, b in zip(once, again))


def test_the_streams_are_these_on_every_python_and_machine():
    assert lengths(traces.story_a())[:3] == [(67, 79), (342, 23), (310, 44)]
    assert [request.arrival_ns for request in traces.story_a()][:3] == [17563570, 57030472, 89063730]
    assert traces.gamma(3, 5, 2, Random(3)) == [3647390, 24954718, 199317417]
    assert lengths(traces.azure_like("conv", 3, 1)) == [(504, 96), (1851, 147), (1535, 136)]


@pytest.mark.parametrize(("rate", "cv"), [(5.53, 1.09), (20.0, 0.5), (5.0, 3.0)])
def test_gamma_arrivals_have_the_rate_and_the_burstiness_asked_for(rate, cv):
    times = traces.gamma(50_000, rate, cv, Random(1))
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    assert min(gaps) >= 0
    assert 1e9 / mean(gaps) == pytest.approx(rate, rel=0.05)
    assert stdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.05)


def test_poisson_arrivals_have_the_rate_asked_for():
    times = traces.poisson(50_000, 50, Random(1))
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    assert times[-1] / 1e9 == pytest.approx(1000, rel=0.02)
    assert stdev(gaps) / mean(gaps) == pytest.approx(1, rel=0.02)


PUBLISHED = {"conv": ((1154.7, 1020, 4142), (211.1, 129, 601)), "code": ((2047.8, 1469, 7436), (27.9, 13, 251))}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_docstring_says_how_far_the_azure_like_lengths_are_off(kind):
    requests = traces.azure_like(kind, 200_000, 1)
    for column, values in (("prompt", [len(r.prompt) for r in requests]), ("output", [r.max_tokens for r in requests])):
        line = re.search(rf"{kind} {column} .*", traces.azure_like.__doc__)[0]
        said = [float(number) for number in re.findall(r"([+-]?\d+\.\d) %", line)]
        published = PUBLISHED[kind][column == "output"]
        made = mean(values), percentile(values, 50), percentile(values, 99)
        assert said == [pytest.approx(100 * (a / b - 1), abs=0.051) for a, b in zip(made, published)]


def test_azure_like_refuses_a_trace_that_nobody_published():
    with pytest.raises(BadTrace, match="'chat'; there are conv and code"):
        traces.azure_like("chat", 10, 1)


GOOD = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319599,396,109\n"


def write(tmp_path, content):
    path = tmp_path / "trace.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_trace_is_read_to_the_nanosecond(tmp_path):
    first, second = traces.read_csv(write(tmp_path, GOOD))
    assert (first.arrival_ns, second.arrival_ns) == (0, 51_999_900)
    assert lengths([first, second]) == [(374, 44), (396, 109)]
    assert isinstance(first.output, Count)


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD + "\n\n",
        GOOD.replace("600,", "600Z,").replace("599,", "599+00:00,"),
        "ID,ContextTokens,GeneratedTokens,TIMESTAMP\n0,374,44,2023-11-16 18:17:03.97996\n1,396,109,2023-11-16 18:17:04.0319599\n",
    ],
    ids=["byte order mark", "CRLF", "blank lines", "time zone", "other columns and order"],
)
def test_harmless_differences_are_read_the_same(tmp_path, content):
    requests = traces.read_csv(write(tmp_path, content))
    assert [request.arrival_ns for request in requests] == [0, 51_999_900]
    assert lengths(requests) == [(374, 44), (396, 109)]


def test_the_largest_numbers_are_taken(tmp_path):
    text = GOOD.splitlines()[0] + "\n1924-01-01 00:00:00,0001000000000,1000000000\n2024-01-01 00:00:00,1,1\n"
    first, last = traces.read_csv(write(tmp_path, text))
    assert lengths([first]) == [(10**9, 10**9)] and last.arrival_ns == 36_525 * 86_400 * 10**9


def test_a_long_trace_says_how_far_it_is_and_leaves_the_collector_as_it_was(tmp_path, monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stderr)
    traces.read_csv(write(tmp_path, GOOD.splitlines()[0] + "\n" + "2023-11-16 18:17:03,374,44\n" * 10_000))
    assert "reading trace.csv: 10,000\x1b" in stderr.getvalue() and stderr.getvalue().endswith("\r\x1b[K")
    assert gc.isenabled()
    with pytest.raises(BadTrace):
        traces.read_csv(tmp_path / "nowhere.csv")
    assert gc.isenabled()


def test_midnight_is_crossed(tmp_path):
    text = GOOD.splitlines()[0] + "\n2023-12-31 23:59:59.9999999,1,1\n2024-01-01 00:00:00,1,1\n"
    assert traces.read_csv(write(tmp_path, text))[1].arrival_ns == 100


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:17:03.9799600,374,44\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["is empty", "TIMESTAMP, ContextTokens, GeneratedTokens"]),
        (HEADER, ["no requests below"]),
        (b"\x89PNG\r\n\x1a\n\0\xff\xfe", ["is not text"]),
        (b"\0\0\0\0", ["is not text"]),
        ("TIMESTAMP,Context,GeneratedTokens\n" + ROW, ["no column ContextTokens", "it has TIMESTAMP, Context, GeneratedTokens"]),
        (HEADER + ROW + "x,y\n", ["line 3", "2 fields where the header has 3", "'x,y'"]),
        (HEADER + ROW + "yesterday,1,1\n", ["line 3", "'yesterday'", "not like 2023-11-16"]),
        (HEADER + "2023-02-30 00:00:00,1,1\n", ["line 2", "no calendar or clock"]),
        (HEADER + "2023-11-16 25:00:00,1,1\n", ["line 2", "no calendar or clock"]),
        (HEADER + ROW.replace("374", "0"), ["line 2", "ContextTokens is '0'", "at least 1"]),
        (HEADER + ROW.replace("44", "-5"), ["line 2", "GeneratedTokens is '-5'"]),
        (HEADER + ROW.replace("44", "NaN"), ["line 2", "GeneratedTokens is 'NaN'"]),
        (HEADER + ROW.replace("44", "1.5"), ["line 2", "GeneratedTokens is '1.5'", "2023-11-16 18:17:03.9799600,374,1.5"]),
        (HEADER + ROW.replace("44", ""), ["line 2", "GeneratedTokens is ''"]),
        (HEADER + ROW + "2023-11-16 18:17:03.9799599,1,1\n",
         ["line 3", "18:17:03.9799599 comes after 2023-11-16 18:17:03.9799600"]),
        (HEADER + ROW + "x" * 500 + ",1,1\n", ["line 3", "…"]),
        (HEADER + ROW.replace("374", "1000000001"), ["line 2", "ContextTokens is '1000000001'", "at most 1,000,000,000"]),
        (HEADER + ROW.replace("44", "9" * 5000), ["line 2", "GeneratedTokens is '999", "at most 1,000,000,000"]),
        (HEADER + ROW.replace("2023", "1723") + ROW, ["line 3", "more than 100 years after the first request"]),
    ],
)  # fmt: skip
def test_a_bad_trace_is_one_sentence_with_line_and_content(tmp_path, content, words):
    with pytest.raises(BadTrace) as caught:
        traces.read_csv(write(tmp_path, content))
    message = str(caught.value)
    for word in ["trace.csv", *words]:
        assert word in message
    assert "\n" not in message and len(message) < 600


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    with pytest.raises(BadTrace, match=r"nowhere.csv does not exist; .*Azure Public Dataset"):
        traces.read_csv(tmp_path / "nowhere.csv")
    with pytest.raises(BadTrace, match="is a directory"):
        traces.read_csv(tmp_path)


def test_a_trace_is_looked_for_and_its_absence_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "FOLDER", tmp_path / "data")
    monkeypatch.delenv("COURSE_DATA", raising=False)
    path, why = traces.find_trace("x.csv")
    assert path is None and "Azure Public Dataset" in why and "CC-BY" in why
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    write(tmp_path, GOOD).rename(tmp_path / "x.csv")
    assert traces.find_trace("x.csv") == (tmp_path / "x.csv", "")


@pytest.mark.parametrize(("kind", "n", "prompt_mean"), [("conv", 19_366, 1154.7), ("code", 8_819, 2047.8)])
def test_the_real_traces_are_read(kind, n, prompt_mean):
    path, why = traces.find_trace(f"AzureLLMInferenceTrace_{kind}.csv")
    if path is None:
        pytest.skip(why)
    requests = traces.read_csv(path)
    assert len(requests) == n
    assert mean(len(request.prompt) for request in requests) == pytest.approx(prompt_mean, abs=0.05)

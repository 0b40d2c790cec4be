"""s14 takes vLLM's decisions: every recorded workload, random ones beside a naive scheduler, and what a difference looks like."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter

import pytest
from naive_unified import FAMILIES, Machine, workload
from place import ROOT, python

sys.path.insert(0, str(ROOT / "solutions"))

from kit.decisions import Decisions, first_divergence, replay, report, show
from kit.errors import CourseError
from kit.explaining import explaining
from kit.parity import replay_file, without_refund
from kit.replay import translate
from kit.workloads import read_workloads
from s14_unified_scheduler import UnifiedScheduler

DATA = ROOT / "tests" / "data" / "vllm"
CASES = ROOT / "tests" / "data" / "field_cases.json"
RECORDED = {name: list(read_workloads(DATA / f"{name}.jsonl.gz")) for name in ("traces", "aborts")}
TRACES = dict(RECORDED["traces"])


def as_recorded(steps, policy):
    """By priority `wait` is a heap, whose order means nothing."""
    return [{**entry, "wait": sorted(entry["wait"])} for entry in steps] if policy == "priority" else steps


@pytest.mark.parametrize(("name", "number"), [("traces", 329), ("aborts", 34)])
def test_every_recorded_decision_is_ours(name, number):
    assert len(RECORDED[name]) == number
    for _, recorded in RECORDED[name]:
        ours, policy = replay(recorded, UnifiedScheduler), recorded["config"]["policy"]
        assert first_divergence(recorded, ours) is None
        assert as_recorded(ours.steps, policy) == as_recorded(recorded["trace"]["steps"], policy), recorded["name"]
        assert ours.outputs == recorded["trace"]["outputs"]
        last = ours.steps[-1]  # a step before which the last request is aborted is noted, not counted
        assert ours.totals["end"] == "done" and ours.totals["steps"] == last["step"] + bool(last["sched"])


@pytest.mark.parametrize("name", RECORDED)
def test_the_naive_scheduler_takes_vllms_decisions_too(name):
    for _, recorded in RECORDED[name]:
        steps, outputs = Machine(recorded).replay()
        assert first_divergence(recorded, Decisions({}, {}, [], steps, outputs)) is None, recorded["name"]


@pytest.mark.parametrize("family", FAMILIES)
def test_random_workloads_of_every_family_are_decided_as_the_naive_scheduler_does(family):
    preempted = 0
    for seed in range(12):
        made = workload(family, seed)
        steps, outputs = Machine(made).replay()
        made["trace"] = {"steps": steps, "outputs": outputs}
        ours = replay(made, UnifiedScheduler)
        found = first_divergence(made, ours)
        assert found is None, report(made["name"], found)
        preempted += ours.totals["preemptions"]
    assert preempted or "tight" not in family, "a family that presses on memory and never evicts checks little"


def test_a_scheduler_that_explains_itself_decides_the_same():
    for name in list(TRACES)[::20]:
        told = replay(TRACES[name], explaining(UnifiedScheduler))
        assert told.steps == replay(TRACES[name], UnifiedScheduler).steps and len(told.told) == len(told.steps)


# A rule changed -------------------------------------------------------------------------------------------------------


class NoLoneRequest(UnifiedScheduler):
    """The threshold caps a lone request too, as it did before 0.31."""

    def step_size(self, request, computed, budget):
        n = super().step_size(request, computed, budget)
        return min(n, self.config.long_prefill_token_threshold or n)


class SelfEvictionEnds(UnifiedScheduler):
    """A request that evicts itself ends the running pass by priority too, as it did before 0.33."""

    asked = ended = None

    def step_size(self, request, computed, budget):
        self.asked = request
        return 0 if self.ended is self.batch else super().step_size(request, computed, budget)

    def preempt(self, victim):
        if victim is self.asked:
            self.ended = self.batch
        return super().preempt(victim)


class AlwaysWatermark(UnifiedScheduler):
    """The watermark holds when nothing runs, too."""

    def fit(self, request, hit, tokens):
        needed, free = super().fit(request, hit, tokens)
        return needed, free - (0 if self.running else self.watermark_blocks)


class HitsCountedTwice(UnifiedScheduler):
    """Idle blocks of the hit are not counted as needed."""

    def fit(self, request, hit, tokens):
        needed, free = super().fit(request, hit, tokens)
        return needed - self.pool.idle(hit), free


class FirstOfRunning(UnifiedScheduler):
    """FCFS evicts the one that has run longest."""

    def pick_victim(self):
        return super().pick_victim() if self.by_priority else self.running[0]


class ToTheBack(UnifiedScheduler):
    """A victim queues up anew."""

    def preempt(self, victim):
        self._added = victim.order = self._added + 1
        return super().preempt(victim)


class LongerByOne(UnifiedScheduler):
    """max_tokens is counted from 0."""

    def add(self, request):
        request.max_tokens += 1
        super().add(request)


class PromptsOnly(UnifiedScheduler):
    """Outputs are never looked up."""

    def chain(self, request):
        return super().chain(request)[: len(request.prompt) // self.config.block_size]


CHANGED = {  # the changed rule, and the rules that the report may name for it
    NoLoneRequest: {"R0"},
    without_refund(UnifiedScheduler): {"R2"},
    SelfEvictionEnds: {"R1", "R2"},
    AlwaysWatermark: {"R4, R5"},
    HitsCountedTwice: {"R4, R5"},
    FirstOfRunning: {"R2"},
    ToTheBack: {"R3"},
    LongerByOne: {"R9"},
    PromptsOnly: {"R4a, R6, R7", "R5, R6", "R4, R5"},
}


@pytest.mark.parametrize("changed", CHANGED, ids=lambda changed: changed.__name__)
def test_a_changed_rule_is_found_and_named_with_step_theirs_and_ours(changed):
    rules: Counter[str] = Counter()
    for name, recorded in TRACES.items():
        try:
            ours = replay(recorded, changed)
        except RuntimeError:  # no block left to hand out: a scheduler that counts wrong may end so
            continue
        found = first_divergence(recorded, ours)
        if found is not None:
            rules[found.rule.partition(" (")[0]] += 1
            text = report(name, found)
            where = "at the end" if found.step is None else f"step {found.step}:"
            assert text.startswith(f"{name}, {where}") and found.theirs != found.ours
            for label, words in (("theirs", found.theirs), ("ours", found.ours), ("rule", found.rule)):
                assert f"\n  {label:8}{words}" in text
        if sum(rules.values()) == 5:
            break
    assert rules and rules.most_common(1)[0][0] in CHANGED[changed], rules


def test_the_first_difference_is_the_first():
    recorded = TRACES["guided-101201"]
    steps = [dict(entry) for entry in recorded["trace"]["steps"]]
    steps[7] = {**steps[7], "wait": ["r9"]}
    steps[9] = {**steps[9], "sched": []}
    found = first_divergence({**recorded, "trace": {"steps": steps}}, replay(recorded, UnifiedScheduler))
    assert (found.step, found.what, found.theirs) == (steps[7]["step"], "waiting", "r9")
    cut = first_divergence({**recorded, "trace": {"steps": steps[:5]}}, replay(recorded, UnifiedScheduler))
    assert (cut.step, cut.theirs) == (steps[5]["step"], "ended before it")
    longer = [*recorded["trace"]["steps"], {**steps[0], "step": 99}]
    more = first_divergence({**recorded, "trace": {"steps": longer}}, replay(recorded, UnifiedScheduler))
    assert (more.step, more.ours) == (99, "ended before it")


def test_other_outputs_are_a_difference():
    recorded = TRACES["guided-101201"]
    trace = {**recorded["trace"], "outputs": {**recorded["trace"]["outputs"], "r1": [1, 2]}}
    found = first_divergence({**recorded, "trace": trace}, replay(recorded, UnifiedScheduler))
    assert found.step is None and found.what == "outputs of r1" and found.theirs == show([1, 2])


# The command ----------------------------------------------------------------------------------------------------------


def run(path, scheduler=UnifiedScheduler, **options):
    """(exit code, lines of stdout, stderr)"""
    out, err = io.StringIO(), io.StringIO()
    code = replay_file(path, scheduler, out=out, err=err, **options)
    return code, out.getvalue().splitlines(), err.getvalue()


def write(path, *workloads):
    path.write_text("".join(json.dumps(one) + "\n" for one in workloads), "utf-8")
    return path


@pytest.fixture
def two(tmp_path):
    return write(tmp_path / "two.jsonl", TRACES["guided-101201"], TRACES["uncomputed_hit-w_bug"])


def test_a_line_has_name_steps_outputs_requests_and_totals(two):
    code, lines, err = run(two)
    assert (code, err) == (0, "")
    for line, name in zip(map(json.loads, lines), ("guided-101201", "uncomputed_hit-w_bug"), strict=True):
        assert list(line) == ["name", "steps", "outputs", "requests", "totals"] and line["name"] == name
        assert line["totals"]["end"] == "done" and set(line["requests"]) == set(line["outputs"])
    assert json.loads(lines[1])["requests"]["L"] == {
        "first_token_step": 8, "finish_step": 9, "finish_reason": "length", "output_tokens": 2, "preemptions": 1,
        "recomputed_tokens": 52, "prefix_hit_tokens_at_admission": [0, 56],
    }  # fmt: skip


def test_field_cases_of_s14_and_before_give_their_numbers():
    code, lines, err = run(CASES, diff=True)
    assert code == 0 and "no difference" in err.splitlines()[-1]
    names = [json.loads(line)["name"] for line in lines]
    assert {"C10", "C10/P9", "C24", "C25", "C04/prefix_caching", "C01/mixed_T2048", "C13", "C28", "C19/no_preemption"} <= {
        *names
    }
    assert "skipped C22: cpu_blocks is 1; s14 has no swap space: use s12 or s13" in err
    assert "skipped C15: it has no config" in err


def test_diff_says_nothing_but_a_verdict_when_all_is_the_same(two):
    assert run(two, diff=True)[::2] == (0, "2 compared, no difference\n")


def test_diff_reports_the_first_difference_explains_it_and_goes_on(two):
    code, lines, err = run(two, without_refund(UnifiedScheduler), diff=True)
    assert code == 1 and len(lines) == 2
    assert f"{two}, line 1 (guided-101201), step 13: the first difference" in err
    for words in (
        "what    tokens of r3",
        "rule    R2 (",
        "theirs  4",
        "ours    3",
        "r3 computes 3 of 8: R1 budget, 3 left",
    ):
        assert words in err
    assert "2 compared, 1 with a difference: guided-101201" in err


def test_diff_without_anything_recorded_is_an_error(tmp_path):
    bare = {key: value for key, value in TRACES["guided-101201"].items() if key != "trace"}
    code, _, err = run(write(tmp_path / "bare.jsonl", bare), diff=True)
    assert code == 2 and "line 1 (guided-101201): it carries no decisions to compare with" in err


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (("trace", "steps", 3, "free"), "seven", "step 3: free is 'seven'; it must be two numbers"),
        (("trace", "steps", 3, "free"), [99], "step 3: free is [99]; it must be two numbers"),
        (("trace", "steps", 3, "shed"), [], "step 3: unknown key 'shed'; did you mean 'sched'?"),
        (("trace", "steps", 3, "sched"), ["r1"], "step 3: an entry of sched is 'r1'; it must be a list"),
        (("expect",), {}, "it carries no decisions to compare with"),
        (("expect",), {"end": "done", "step": 3}, "expect: unknown key 'step'; did you mean 'steps'?"),
        (("expect",), {"requests": {"nobody": {}}}, "expect.requests: the workload has no request 'nobody'"),
        (
            ("expect",),
            {"requests": {"r1": {"finish_stop": 3}}},
            "r1: unknown key 'finish_stop'; did you mean 'finish_step'?",
        ),
        (("expect",), {"schedule": [{"step": 0, "token": {}}]}, "step 0: unknown key 'token'; did you mean 'tokens'?"),
    ],
)
def test_what_was_recorded_and_is_not_understood_is_no_agreement(tmp_path, at, value, words):
    workload = changed()
    if at == ("expect",):
        del workload["trace"]
    part = workload
    for key in at[:-1]:
        part = part[key]
    part[at[-1]] = value
    code, _, err = run(write(tmp_path / "w.jsonl", workload), diff=True)
    assert code == 2 and words in err and "0 compared, so nothing is known" in err


def test_nothing_compared_is_said_and_is_no_success(tmp_path):
    later = {"scheduler": "s15", **changed()}
    code, _, err = run(write(tmp_path / "w.jsonl", later), diff=True)
    assert code == 2 and "0 compared, so nothing is known" in err


def test_a_scheduler_that_computes_nothing_is_stuck_after_six_steps(tmp_path):
    class Idle(UnifiedScheduler):
        def running_pass(self, budget):
            return budget

    found = replay(TRACES["guided-101201"], Idle)
    assert found.totals["end"] == "stuck" and found.totals["steps"] < 200


def test_a_run_that_gets_stuck_is_a_sentence_in_place_of_numbers(capsys):
    from kit import parity
    from s08_static_batching import Engine

    class Idle(UnifiedScheduler):
        def running_pass(self, budget):
            return budget

    with pytest.raises(CourseError, match=r"the run is stuck: .* no progress"):
        parity.a_shared_prefix(Idle, Engine)


def test_a_scheduler_that_breaks_is_reported_with_workload_and_step_and_the_next_one_runs(two):
    class Breaks(UnifiedScheduler):
        def pick_victim(self):
            return [][0]

    code, lines, err = run(two, Breaks, diff=True)
    assert code == 2 and lines == [] and err.count("\n") == 3
    assert "line 2 (uncomputed_hit-w_bug): the scheduler raised IndexError in step 6: list index out of range" in err


def test_an_expectation_that_is_missed_names_request_field_and_step(tmp_path):
    case = next(case for name, case in read_workloads(CASES) if name == "C25")
    expect = json.loads(json.dumps(case["expect"]))
    expect["requests"]["b"]["prefix_hit_tokens_at_admission"] = [0, 4]
    code, _, err = run(write(tmp_path / "c.jsonl", {**case, "expect": expect, "variants": []}), diff=True)
    assert code == 1 and "prefix_hit_tokens_at_admission of b" in err and "rule    R4a" in err
    assert "theirs  0, 4" in err and "ours    0, 8" in err


CONFIG = {"block_size": 4, "num_blocks": 5, "max_num_seqs": 4, "max_num_batched_tokens": 8}


def test_explain_says_what_happened_by_which_rule_and_with_which_numbers(tmp_path):
    prompts = {"A": (3, 6), "B": (4, 5), "C": (5, 3), "D": (2, 3)}
    requests = [{"id": name, "prompt_len": p, "max_tokens": m} for name, (p, m) in prompts.items()]
    code, lines, err = run(
        write(tmp_path / "w.jsonl", {"name": "four", "config": CONFIG, "requests": requests}), explain=True
    )
    assert (code, err) == (0, "") and lines[0] == "four"
    text = "\n".join(lines)
    for words in (
        "  step 0: 8 of 8 tokens for 3 requests",
        "    C joins: R4 seat 3 of 4, R5 needs 1 block, 3 free",
        "    C computes 1 of 5: R1 budget, 1 left; takes 1 block, 2 left free",
        "    D waits: R4 needs 1 token, 0 left",
        "    D waits: R5 needs 1 block, 0 free",
        "    C evicted for A: R2 A lacks 1 block, 0 free; C is the last of running; R3 it loses 5 stored tokens",
        "    D waits: R4 nobody joins in a step that evicts",
        "    C waits: R5 needs 2 blocks, 1 free",
        "    D waits: R4 would fit, but waits behind C",
        "    C resumes: R4 seat 2 of 4, R5 needs 2 blocks, 3 free",
        "    B finishes (length): R9 5 outputs, max_tokens 5; 2 blocks free at once",
    ):
        assert words in text, words


def test_explain_names_threshold_hits_refund_and_the_watermark(two, tmp_path):
    text = "\n".join(run(two, explain=True)[1])
    for words in (
        "L computes 8 of 28: R0 threshold 8",
        "L resumes: R4 seat 1 of 4, R4a hits 56 tokens in 14 blocks, 1 of them never computed (R7), R5 needs 16 blocks for all 64 tokens it knows, 17 free",
        "it was scheduled already, 8 tokens return to the budget",
        "L waits: R5 needs 16 blocks, 14 free (for all 64 tokens it knows)",
    ):
        assert words in text, words
    config = {**CONFIG, "num_blocks": 7, "watermark": 0.5}
    requests = [{"id": name, "prompt_len": 8, "max_tokens": 2} for name in "ab"]
    kept = write(tmp_path / "kept.jsonl", {"config": {**config, "max_num_batched_tokens": 16}, "requests": requests})
    assert "b waits: R5 needs 2 blocks, 1 free (watermark keeps 4 more)" in "\n".join(run(kept, explain=True)[1])


def test_explain_finds_the_reads_of_kv_that_nobody_computed_where_vllms_record_has_them():
    for name, recorded in TRACES.items():
        if recorded["config"]["policy"] == "priority" and recorded["config"]["enable_prefix_caching"]:
            told = replay(recorded, explaining(UnifiedScheduler)).told
            ours = {step for step, entries in told if any("never computed" in str(entry) for entry in entries)}
            theirs = {step for step, *_ in recorded["trace"].get("kv_bad", [])}
            assert ours <= theirs and bool(ours) == bool(theirs), name


def test_every_live_request_has_a_sentence_in_every_step(two):
    found = replay(TRACES["guided-101201"], explaining(UnifiedScheduler))
    for entry, (step, told) in zip(found.steps, found.told, strict=True):
        about = {sentence.ids[0] for sentence in told if sentence.ids}
        assert step == entry["step"] and {*entry["run"], *entry["wait"]} <= about


def test_explain_is_narrowed_by_request_and_steps(two):
    _, lines, _ = run(two, explain=True, requests=["H"], steps=(5, 6))
    steps = [line.partition(":")[0] for line in lines if line.startswith("  step")]
    assert lines[0] == "uncomputed_hit-w_bug" and steps == ["  step 5", "  step 6"]
    sentences = [line for line in lines if line.startswith("    ")]
    assert len(sentences) == 3 and all("H" in line for line in sentences)
    assert "evicted for H" in sentences[1]


def test_explain_of_nobody_is_an_error(two):
    code, lines, err = run(two, explain=True, requests=["zz"], steps=(1, 2))
    assert (code, lines) == (2, []) and "no step names zz from step 1 to 2" in err


def changed(**parts):
    one = json.loads(json.dumps(TRACES["guided-101201"]))
    for path, value in parts.items():
        *place, last = path.split("__")
        spot = one
        for key in place:
            spot = spot[int(key) if key.isdecimal() else key]
        spot[last] = value
    return one


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (changed(config__num_gpu_block=3), "unknown option 'num_gpu_block'; did you mean 'num_gpu_blocks'?"),
        (changed(config__watermark="x"), "watermark is 'x'"),
        (changed(config__enable_prefix_caching=1), "enable_prefix_caching is 1; it must be true or false"),
        (changed(config__scheduler_reserve_full_isl="yes"), "scheduler_reserve_full_isl is 'yes'"),
        (changed(config__num_blocks=8), "set the same thing"),
        (changed(config__policy="shortest"), 'policy is "shortest"; s14 knows fcfs and priority'),
        (changed(config__cpu_blocks=4), "cpu_blocks is 4; s14 has no swap space: use s12 or s13"),
        (changed(config__num_gpu_blocks=1), "num_gpu_blocks is 1; it must be at least 2"),
        (changed(config=None), "config is missing"),
        (changed(requests={}), "requests is {}; it must be a list"),
        (changed(requests__0__max_token=3), "request r0: unknown key 'max_token'; did you mean 'max_tokens'?"),
        (changed(requests__0__priority=True), "request r0: priority is True"),
        (changed(requests__0__stop_token_ids=5), "request r0: stop_token_ids is 5; it must be a list"),
        (changed(requests__0__prompt=["a"]), "request r0: a token of its prompt is 'a'"),
        (changed(aborts=[{"id": "r0", "step": 1, "when": "after"}]), "an abort's `when` is 'after'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_file_and_line_and_the_others_run(tmp_path, bad, words):
    path = write(tmp_path / "three.jsonl", changed(), bad, changed(name="third"))
    code, lines, err = run(path)
    assert code == 2 and [json.loads(line)["name"] for line in lines] == ["guided-101201", "third"]
    assert err.startswith(f"{path}, line 2 (guided-101201): ") and words in err and err.count("\n") == 1


def test_a_file_that_breaks_off_names_the_line(tmp_path):
    text = json.dumps(changed())
    path = tmp_path / "cut.jsonl"
    path.write_text(f"{text}\n{text[:900]}", "utf-8")
    code, lines, err = run(path)
    assert (code, lines) == (2, []) and "cut.jsonl, line 2 is not JSON" in err and err.count("\n") == 1
    packed = tmp_path / "cut.jsonl.gz"
    packed.write_bytes((DATA / "traces.jsonl.gz").read_bytes()[:200_000])
    code, lines, err = run(packed)
    assert (code, lines) == (2, []) and "it breaks off in line 73" in err and err.count("\n") == 1


def test_other_keys_are_ignored(tmp_path):
    one = changed(seed=3, kills=[1], kv_bad=[], remark="x", trace__config={"x": 1})
    assert run(write(tmp_path / "one.jsonl", one), diff=True)[0] == 0


def test_variants_follow_their_case_under_name_and_variant(tmp_path):
    case = {"id": "X", "config": CONFIG, "requests": [{"id": "a", "prompt_len": 4, "max_tokens": 2}]}
    case["variants"] = [{"name": "wide", "config_change": {"num_blocks": 9}}]
    lines = [json.loads(line) for line in run(write(tmp_path / "x.jsonl", case))[1]]
    assert [line["name"] for line in lines] == ["X", "X/wide"] and lines[1]["steps"][0]["free"] == [8, 8]


def test_steps_jump_over_idle_time_and_totals_count_it(tmp_path):
    requests = [{"id": name, "arrival": at, "prompt_len": 4, "max_tokens": 1} for name, at in (("a", 2), ("b", 200))]
    line = json.loads(run(write(tmp_path / "x.jsonl", {"config": CONFIG, "requests": requests}))[1][0])
    assert [entry["step"] for entry in line["steps"]] == [2, 200] and line["totals"]["steps"] == 201
    capped = {"config": {**CONFIG, "max_steps": 50}, "requests": requests}
    line = json.loads(run(write(tmp_path / "x.jsonl", capped))[1][0])
    assert line["totals"]["end"] == "max" and line["totals"]["steps"] == 50


def test_an_abort_in_mid_step_drops_the_output_and_frees_at_once(tmp_path):
    requests = [{"id": name, "prompt_len": 4, "max_tokens": 3} for name in "ab"]
    one = {"config": CONFIG, "requests": requests, "aborts": [{"id": "a", "step": 1, "when": "mid"}]}
    line = json.loads(run(write(tmp_path / "x.jsonl", one))[1][0])
    entry = line["steps"][1]
    assert list(entry) == ["step", "sched", "free_s", "abort_mid", "free_u", "run", "wait"]
    assert (entry["sched"], entry["abort_mid"]) == ([["a", 1], ["b", 1]], [["a", "running", 2]])
    assert (entry["free_s"], entry["free_u"], entry["run"]) == (1, 3, ["b"])
    assert len(line["outputs"]["a"]) == 1 and len(line["outputs"]["b"]) == 3
    assert line["requests"]["a"]["finish_reason"] == "abort" and line["requests"]["a"]["finish_step"] == 1


def test_what_a_configuration_of_vllm_leaves_out_means_what_it_means_to_vllm():
    vllm = translate({"num_gpu_blocks": 9}, "s14")
    assert (vllm["num_blocks"], vllm["admission"], vllm["prefix_caching"]) == (8, "full_prompt", True)
    ours = translate({"num_blocks": 8}, "s14")
    assert (ours["admission"], ours["prefix_caching"]) == ("chunk", False)
    said = translate({"num_gpu_blocks": 9, "scheduler_reserve_full_isl": False, "enable_prefix_caching": False}, "s14")
    assert (said["admission"], said["prefix_caching"]) == ("chunk", False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefill_first": True}, "prefill_first is true; s14 computes prompts and decodes in one step"),
        ({"skip_blocked": True}, "use s13"),
        ({"preempt_for_priority": True}, "use s13"),
        ({"aging_per_step": 0.5}, "aging_per_step is 0.5"),
        ({"admission": "to_completion"}, "use s13"),
    ],
)
def test_what_s14_lacks_is_refused_with_the_way_out(options, words):
    with pytest.raises(CourseError, match=words):
        translate(options, "s14")
    name = next(iter(options))
    assert translate({name: {"admission": "chunk"}.get(name, False)}, "s14") is not None


def test_the_command_compares_and_exits_with_1_at_a_difference(fresh, tmp_path):
    good = python("course.py", "run", "s14", "--replay", DATA / "aborts.jsonl.gz", "--diff", cwd=fresh)
    assert good.returncode == 0 and "34 compared, no difference" in good.stderr
    assert all("steps" in json.loads(line) for line in good.stdout.splitlines())
    other = changed()
    other["trace"]["steps"][3]["sched"][0][1] += 1
    path = write(tmp_path / "other.jsonl", other)
    bad = python("course.py", "run", "s14", "--replay", path, "--diff", cwd=fresh)
    assert bad.returncode == 1 and "the first difference" in bad.stderr and "Traceback" not in bad.stderr
    told = python("course.py", "run", "s14", "--replay", path, "--explain", "--request", "r1", "--steps", "1-3", cwd=fresh)
    assert told.returncode == 0 and told.stdout.startswith("guided-101201\n  step 1: ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--diff"], "--diff goes with --replay"),
        (["--replay", "x", "--steps", "3"], "--steps goes with --explain"),
        (["--replay", "x", "--explain", "--steps", "5-2"], "steps is '5-2'"),
        (["--policy", "shortest"], "policy 'shortest' is unknown; choose fcfs, priority"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(args, words):
    done = python("solutions/s14_unified_scheduler.py", *args)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1

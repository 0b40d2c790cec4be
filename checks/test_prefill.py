"""Around s18's kernels: bad input is refused before a launch, TinyLM in torch is TinyLM, what is drawn was recorded."""

from __future__ import annotations

import json
import math
import os
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from place import ROOT, lacks, run

MISSING = lacks("s18_triton_prefill")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Triton has no package for macOS and Windows"),
    pytest.mark.skipif(bool(MISSING) and not os.environ.get("CI"), reason=f"not installed: {MISSING}"),
]
SCRIPT = ROOT / "solutions/s18_triton_prefill.py"


@pytest.fixture(scope="module")
def s18():
    sys.path.insert(0, str(ROOT / "solutions"))
    return pytest.importorskip("s18_triton_prefill")


# Bad input


def broken(s18, name: str):
    """(what is wrong, a call that must be refused, words of the sentence)."""
    from kit.gpu import DEVICE, torch
    from kit.ragged import ragged

    def ints(*numbers):
        return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)

    b = ragged(0, [5, 9], [2, 3], block_size=8)
    q, k_cache, v_cache, tables, starts, _ = b.mixed
    new = torch.zeros(2, 2, 64, device=DEVICE)
    wanted = dict(zip(("k_cache", "v_cache", "k", "v", "slot_mapping"), (k_cache, v_cache, new, new, ints(0, 1))))

    def attend(**other):
        return s18.paged_attention(**{**dict(zip(NAMES, b.mixed)), **other})

    def store(**other):
        return s18.write_kv(**{**wanted, **other})

    return {
        "starts too short": (lambda: attend(query_start_loc=starts[:-1]), "query_start_loc 3 int32"),
        "starts of int64": (lambda: attend(query_start_loc=starts.long()), "query_start_loc int32"),
        "starts that fall": (lambda: attend(query_start_loc=ints(0, 6, 5)), "query_start_loc rise 5"),
        "starts that end early": (lambda: attend(query_start_loc=ints(0, 2, 4)), "query_start_loc 5"),
        "more queries than tokens": (lambda: attend(seq_lens=ints(1, 9)), "more queries stored"),
        "length beyond the table": (lambda: attend(seq_lens=ints(5, 99)), "99 room"),
        "block that is not there": (lambda: attend(block_tables=tables + 999), "block ids cache"),
        "head size 48": (lambda: attend(q=q[..., :48].contiguous()), "head size 48"),
        "dtype of q": (lambda: attend(q=q.half()), "float16 float32"),
        "cache in float64": (lambda: attend(k_cache=k_cache.double()), "float64"),
        "negative window": (lambda: attend(window=-1), "window -1"),
        "slot beyond the cache": (lambda: store(slot_mapping=ints(0, 8 * len(k_cache))), "slots cache"),
        "slot -2": (lambda: store(slot_mapping=ints(0, -2)), "-2 -1 skips"),
        "a slot too few": (lambda: store(slot_mapping=ints(0)), "1 slots together"),
        "slots as floats": (lambda: store(slot_mapping=ints(0, 1).float()), "slot_mapping float32"),
        "v of another shape": (lambda: store(v=new[:1]), "together"),
        "k of another dtype": (lambda: store(k=new.half()), "float16 alike"),
        "k without heads": (lambda: store(k=new[0]), "dimensions"),
        "a cache that is a view": (
            lambda: store(k_cache=k_cache.transpose(0, 1).contiguous().transpose(0, 1)),
            "contiguous",
        ),
    }[name]


NAMES = ("q", "k_cache", "v_cache", "block_tables", "query_start_loc", "seq_lens")
BROKEN = (
    *("starts too short", "starts of int64", "starts that fall", "starts that end early", "more queries than tokens"),
    *("length beyond the table", "block that is not there", "head size 48", "dtype of q", "cache in float64"),
    *("negative window", "slot beyond the cache", "slot -2", "a slot too few", "slots as floats", "v of another shape"),
    *("k of another dtype", "k without heads", "a cache that is a view"),
)


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_go_together_is_refused_before_anything_is_launched(s18, name):
    call, words = broken(s18, name)
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words.split()), str(caught.value)


def test_an_empty_step_is_no_error(s18):
    from kit.gpu import torch
    from kit.ragged import ragged

    b = ragged(0, [5], [0])
    assert s18.paged_attention(*b.mixed).shape == b.q.shape
    nothing = b.k_cache.new_zeros(0, *b.k_cache.shape[2:])
    s18.write_kv(b.k_cache, b.v_cache, nothing, nothing, torch.zeros(0, dtype=torch.int32, device=b.q.device))


MASKED = """
@jit
def write_kernel(k_cache, v_cache, k, v, slot_mapping, WIDTH: tl.constexpr, LANES: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    lanes = tl.arange(0, LANES)
    mask = (lanes < WIDTH) & (slot >= 0)
    tl.store(k_cache + slot * WIDTH + lanes, tl.load(k + token * WIDTH + lanes, mask=mask), mask=mask)
    tl.store(v_cache + slot * WIDTH + lanes, tl.load(v + token * WIDTH + lanes, mask=mask), mask=mask)
"""


def test_a_mask_of_a_tile_and_a_scalar_is_a_mask(s18, tmp_path):
    """The interpreter makes it int32, which its loads refuse; a compiled kernel takes it."""
    from kit.exercise import graft
    from kit.gpu import DEVICE, torch

    (tmp_path / "masked.py").write_text(MASKED, "utf-8")
    kept = s18.write_kernel
    graft(tmp_path / "masked.py", vars(s18))
    try:
        caches = [torch.zeros(2, 4, 3, 4, device=DEVICE) for _ in range(2)]
        new = torch.ones(3, 3, 4, device=DEVICE)
        s18.write_kv(*caches, new, new, torch.tensor([5, -1, 0], device=DEVICE))
    finally:
        s18.write_kernel = kept
    for cache in caches:
        assert cache.flatten(0, 1).sum((1, 2)).nonzero().flatten().tolist() == [0, 5]


# TinyLM in torch, and the batches that the tests run through it


def test_torch_computes_what_numpy_computes(s18):
    """Without kernels: the scores of a text, to float32's rounding."""
    from kit.gpu import DEVICE, torch
    from kit.kernels_prefill import models
    from kit.ragged import relative_error

    model, torch_model = models()
    tokens = model.encode("Once upon a time there was a young squirrel")

    def attention(layer, q, k, v):
        group = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) / math.sqrt(q.shape[-1])
        ahead = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(ahead, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))

    ids = torch.tensor(tokens, device=DEVICE)
    got = torch_model.forward(ids, torch.arange(len(ids), device=DEVICE), attention)
    assert relative_error(got, torch.tensor(model.logits(tokens), device=DEVICE)) < 1e-5
    last = torch_model.forward(ids, torch.arange(len(ids), device=DEVICE), attention, [len(ids) - 1])
    assert torch.equal(last, got[-1:]) or relative_error(last, got[-1:].double()) < 1e-6


@pytest.mark.parametrize(
    ("num_blocks", "which", "what"), [(30, (0, 1), "hits"), (5, (1, 2), "preempted"), (30, (0, 2), "")]
)
def test_in_the_tests_of_the_lesson_prompts_are_cut_prefixes_shared_and_requests_evicted(s18, num_blocks, which, what):
    from kit.config import Config
    from kit.kernels_prefill import PROMPTS, SMALL, models, served
    from kit.request import Request
    from s06_paged_attention import PagedRunner
    from s14_unified_scheduler import UnifiedScheduler

    model, _ = models()
    requests = [Request(f"r{i}", model.encode(PROMPTS[i]), 4, i * 20_000_000) for i in which]
    scheduler = UnifiedScheduler(Config(**SMALL, num_blocks=num_blocks, prefix_caching=True), safe=True)
    batches = served(scheduler, PagedRunner(model, num_blocks, 4), requests)
    assert not what or any(getattr(batch, what) for batch in batches)
    assert any(1 < n < len(request.prompt) for batch in batches for request, n in batch.tokens.items()), "no prompt was cut"


# What is shown


@pytest.mark.parametrize("window", [0, 12])
@pytest.mark.parametrize("queries", [4, 8])
def test_what_is_recorded_is_what_the_arithmetic_says(s18, window, queries):
    from kit.gpu import INTERPRETED
    from kit.tiles import SETUPS, planned, record

    if not INTERPRETED:
        pytest.skip("only the interpreter tells what is read")
    for setup in SETUPS.values():
        setup = replace(setup, window=window, queries=queries)
        recorded, by_hand = record(s18, setup), planned(setup)
        assert not recorded.by_hand and recorded.programs == by_hand.programs and recorded.tables == by_hand.tables
        stored = sorted(row for program in recorded.programs for row in program.stored)
        assert stored == list(range(setup.starts[-1]))


def test_the_picture_shows_every_program_and_names_what_it_reads(s18):
    from kit.tiles import Setup, describe, record, svg

    recorded = record(s18, Setup())
    for number in range(len(recorded.programs)):
        ET.fromstring(svg(recorded, number))
    assert describe(recorded, 4) == "Program 4 computes positions 28 to 31 of request C over its keys 0 to 31"
    assert describe(recorded, 6) == "Program 6 has no work"


def test_a_kernel_that_reads_too_much_is_seen_in_the_picture(s18):
    """The picture draws the learner's kernel, not the right one."""
    from kit.exercise import graft
    from kit.gpu import INTERPRETED
    from kit.tiles import Setup, record

    if not INTERPRETED:
        pytest.skip("only the interpreter tells what is read")
    right, kept = record(s18, Setup()), s18.keys_for
    graft(ROOT / "checks/wrong_answers/s18_triton_prefill/all_keys_for_everybody.py", vars(s18))
    try:
        wrong = record(s18, Setup())
    finally:
        s18.keys_for = kept
    assert right.keys(right.programs[1]) == [0, 1, 2, 3]
    assert wrong.keys(wrong.programs[1]) == [0, 1, 2, 3, 4, 5]


def test_pairs_are_counted_as_the_tiles_are_walked():
    from kit.kernels_prefill import pairs

    assert pairs(1, 4095, 8, 64) == (8 * 4096, 8 * 4096, 4096)
    assert pairs(16, 0, 8, 64) == (16 * 64, 16 * 64, 136)
    assert pairs(20, 60, 8, 16) == (24 * 80, 8 * (80 + 80 + 80), sum(range(61, 81)))


def test_a_story_of_ones_own_is_cut_by_the_budget(tmp_path):
    file = tmp_path / "story.json"
    options = ("--prompt", "The fox said to the bear", "--max-tokens", "2", "--budget", "5", "--json", str(file))
    done = run(sys.executable, SCRIPT, *options)
    assert done.returncode == 0, done.stderr
    assert "2 tokens, the same as NumPy's" in done.stdout
    assert json.loads(file.read_text("utf-8"))["steps"] == [5, 3, 1]


def test_a_prompt_too_long_is_one_sentence():
    done = run(sys.executable, SCRIPT, "--prompt", "a b " * 400)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "the model takes 512" in done.stderr

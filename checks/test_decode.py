"""Around s17's kernel: bad input is refused before a launch, what is shown is computed, and what is drawn was recorded."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from place import ROOT, grade, lacks, python, run

MISSING = lacks("s17_triton_decode")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Triton has no package for macOS and Windows"),
    pytest.mark.skipif(bool(MISSING) and not os.environ.get("CI"), reason=f"not installed: {MISSING}"),
]
SCRIPT = ROOT / "solutions/s17_triton_decode.py"


@pytest.fixture(scope="module")
def s17():
    sys.path.insert(0, str(ROOT / "solutions"))
    return pytest.importorskip("s17_triton_decode")


@pytest.fixture
def batch(s17):
    from kit.ragged import ragged

    return ragged(0, [5, 33, 0], group=2)


# Bad input


def change(name: str, how) -> dict:
    """A mutation of one argument of paged_decode."""
    return {"name": name, "how": how}


BAD = {
    "two dimensions": (
        change("q", lambda t: t[0]),
        "q has 3 dimensions, a cache 4, block_tables 2 and seq_lens 1; these have 2",
    ),
    "one cache is shorter": (change("v_cache", lambda t: t[1:]), "they must be alike"),
    "another device": (change("seq_lens", lambda t: t.to("meta")), "q is on cpu and seq_lens on meta: move one of them"),
    "a view": (
        change("q", lambda t: t.transpose(0, 1).contiguous().transpose(0, 1)),
        "q is not contiguous: call .contiguous()",
    ),
    "float64": (change("q", lambda t: t.double()), "all float16, bfloat16 or float32"),
    "two types": (change("k_cache", lambda t: t.half()), "q is torch.float32, the caches torch.float16 and torch.float32"),
    "int64 lengths": (change("seq_lens", lambda t: t.long()), "both must be int32"),
    "int64 tables": (change("block_tables", lambda t: t.long()), "both must be int32"),
    "head size 32": (
        change("q", lambda t: t[..., :32].contiguous()),
        "head size 32 of q, 64 of the caches: both must be one of (32, 64, 128)",
    ),
    "heads that don't divide": (
        change("q", lambda t: t[:, :3].contiguous()),
        "3 heads over 2 KV heads: a whole number of at most 16",
    ),
    "a group of 32": (change("q", lambda t: t.repeat(1, 16, 1)), "64 heads over 2 KV heads"),
    "a table too many": (change("block_tables", lambda t: t[:2].contiguous()), "2 block tables for 3 lengths"),
    "a table too short": (
        change("block_tables", lambda t: t[:, :2].contiguous()),
        "lengths from 0 to 33: a table of 2 blocks of 16 has room for 32",
    ),
    "a negative length": (change("seq_lens", lambda t: t - 1), "lengths from -1 to 32"),
    "a block beyond the pool": (change("block_tables", lambda t: t + 1000), "in the tables: the cache has blocks 0 to"),
    "a negative block": (change("block_tables", lambda t: t - 1000), "block ids from -"),
    "queries without requests": (
        change("q", lambda t: t.repeat(2, 1, 1)),
        "6 queries for 3 requests: a decode has one each",
    ),
    "no KV head": (change("both", lambda t: t[:, :, :0].contiguous()), "for at least one KV head"),
    "a negative window": (change("window", lambda _: -3), "window is -3; it must be at least 0"),
    "too many splits": (
        change("num_splits", lambda _: 129),
        "num_splits is 129: one program merges them, and has registers for 128",
    ),
    "no splits": (change("num_splits", lambda _: -1), "num_splits is -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_value_error_in_a_sentence_before_anything_is_launched(s17, batch, monkeypatch, name):
    bad, words = BAD[name]

    class Never:
        def __getitem__(self, grid):
            raise AssertionError("a kernel was launched")

    monkeypatch.setattr(s17, "decode_kernel", Never())
    args = dict(zip(("q", "k_cache", "v_cache", "block_tables", "seq_lens"), batch.decode))
    for key in ("k_cache", "v_cache") if bad["name"] == "both" else (bad["name"],):
        args[key] = bad["how"](args.get(key))
    with pytest.raises(ValueError) as caught:
        s17.paged_decode(**args)
    assert words in str(caught.value) and "\n" not in str(caught.value), caught.value


@pytest.mark.parametrize("name", [-1, 10**9])
def test_what_stands_behind_a_requests_last_block_means_nothing(s17, batch, name):
    from kit.ragged import verdict

    tables = batch.block_tables.clone()
    for i, used in enumerate((1, 3, 0)):
        tables[i, used:] = name
    q, k, v, _, lengths = batch.decode
    assert not verdict(s17.paged_decode(q, k, v, tables, lengths), batch).wrong


def test_a_forgotten_return_is_one_message(tmp_path):
    wrong = tmp_path / "s17_triton_decode/silent.py"
    wrong.parent.mkdir()
    wrong.write_text('"""Silent."""\n@jit\ndef merge(parts, lse):\n    whole = tl.sum(parts, axis=0)\n', "utf-8")
    test = "tests/test_s17_triton_decode.py"
    found = grade(ROOT, test, "--solutions", "-k", "merge or splits_are_chosen", COURSE_WRONG_ANSWER=str(wrong))
    (failure,) = found["failed"]
    assert "merge returned" in failure["message"] and "`return`" in failure["message"], failure


# What is launched


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "ieee"), ("float16", "tf32"), ("bfloat16", "tf32")])
def test_float32_is_asked_to_be_exact(s17, dtype, precision):
    from kit.gpu import launches
    from kit.ragged import ragged

    (one,) = launches(s17, s17.paged_decode, *ragged(0, [5], dtype=dtype).decode)
    assert (one.name, one.constants["PRECISION"]) == ("decode_kernel", precision)


def test_a_split_request_is_merged_by_a_second_kernel_and_a_lone_split_is_not(s17):
    from kit.gpu import launches
    from kit.ragged import ragged

    long = ragged(0, [200], num_kv_heads=1)
    assert [one.name for one in launches(s17, s17.paged_decode, *long.decode, 0, 1)] == ["decode_kernel"]
    first, second = launches(s17, s17.paged_decode, *long.decode, 0, 3)
    assert (first.grid, second.name, second.grid) == ((1, 1, 3), "reduce_kernel", (4,))


@pytest.mark.parametrize(("window", "wanted"), [(0, 200), (1, 64), (20, 83), (500, 200)])
def test_a_window_is_split_by_what_it_shows_not_by_what_is_stored(s17, monkeypatch, window, wanted):
    from kit.gpu import launches
    from kit.ragged import ragged

    asked = []
    monkeypatch.setattr(s17, "tile_for", lambda q: 64)
    monkeypatch.setattr(s17, "splits_for", lambda seqs, heads, longest, *rest: asked.append(longest) or 1)
    launches(s17, s17.paged_decode, *ragged(0, [200, 30]).decode, window)
    assert asked == [wanted]


# What the script shows


def test_the_walk_is_the_softmax_whatever_the_tile(s17):
    from kit import kernels

    for length, size in ((1, 16), (15, 8), (64, 16), (65, 8), (150, 32)):
        one = kernels.request_of(length, size)
        for tile in (8, 64, 1000):
            *_, last = kernels.walk(one, tile)
            assert kernels.apart(last.output, kernels.at_once(one)) < 1e-14, (length, size, tile)


def test_each_tile_of_the_walk_brings_a_new_peak_so_that_a_kernel_that_never_rescales_is_seen(s17, monkeypatch, tmp_path):
    from kit import kernels
    from kit.exercise import graft

    one = kernels.request_of(150, 16)
    peaks = [step.peak for step in kernels.walk(one)]
    assert peaks == sorted(set(peaks)) and len(peaks) == 3
    monkeypatch.setattr(s17, "absorb", s17.absorb)
    graft(ROOT / "checks/wrong_answers/s17_triton_decode/accumulator_not_rescaled.py", vars(s17))
    got = s17.paged_decode(*kernels.tensors_of(one), num_splits=1)
    assert kernels.apart(got.flatten().tolist(), kernels.at_once(one)) > 0.01


def test_the_six_numbers_are_those_of_the_lesson(s17):
    from kit import kernels

    steps = list(kernels.online(kernels.SCORES, kernels.VALUES, 2))
    assert [(s.peak, s.total, s.acc) for s in steps] == [(3, 1.25, 22.5), (5, 1.4375, 49.375), (5, 1.96875, 76.25)]
    for tile in (1, 3, 6):
        *_, last = kernels.online(kernels.SCORES, kernels.VALUES, tile)
        assert last.result == steps[-1].result


def test_bytes_and_operations_are_those_of_s03_and_the_benchmark(s17):
    import s03_step_cost as s03
    from kit.kernels import Decodes

    one, model = Decodes(16, 2048), s03.LLAMA3_8B
    step = [s03.Chunk(1, 2047)] * 16
    assert model.layers * one.flops == s03.flops(model, step) - 2 * model.weights * 16
    assert model.layers * one.kv_bytes == s03.traffic(model, step) - 2 * model.weights
    spec = importlib.util.spec_from_file_location("bench_paged_attention", ROOT / "bench/paged_attention.py")
    bench = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = bench
    spec.loader.exec_module(bench)
    other = bench.Case(bench.SHAPES[0], 16, 2048)
    assert (other.kv_bytes, other.flops) == (one.kv_bytes, one.flops)
    assert other.bytes - one.moved == 4 * 16 * 2048 // bench.BLOCK_SIZE, "the benchmark counts the tables too"


def test_the_compiled_tables_are_those_kept_beside_the_benchmark(s17):
    from kit import kernels

    for kernel in ("decode", "mixed"):
        version, uses, hints = kernels.compiled(kernel)
        assert version[0].isdigit() and len(uses) == 3 * 4 and len(hints) == 3 * 2 * 2
        assert all(row[3] == "0" for row in uses if row[1].startswith("sm_"))


HIDDEN = "import sys\nsys.modules.update(dict.fromkeys({names}))\nsys.path.insert(0, 'solutions')\nimport s17_triton_decode as s17\ns17.main([])\n"


@pytest.mark.parametrize(
    ("names", "oracle"), [(["triton", "triton.language"], 1), (["torch", "triton", "triton.language"], 0)]
)
def test_without_triton_the_script_says_what_it_leaves_out_and_does_the_rest(names, oracle):
    done = run(sys.executable, "-c", HIDDEN.format(names=names))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Skipped") == 3 and done.stdout.count("needs") >= 2
    assert done.stdout.count("Your oracle on these numbers: the same to 12 digits") == oracle
    assert all(f"\n{number}. " in done.stdout for number in range(1, 8))


@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (64, 16), (129, 7)])
def test_a_walk_of_ones_own(tokens, size, tmp_path):
    done = python(SCRIPT, "--tokens", str(tokens), "--block-size", str(size), "--json", tmp_path / "out.json")
    assert done.returncode == 0 and "NOT" not in done.stdout, done.stdout + done.stderr
    assert len(json.loads((tmp_path / "out.json").read_text())["walk"]) == math.ceil(tokens / 64)


def test_an_option_that_makes_no_sense_is_refused():
    for args, word in ((["--tokens", "0"], "tokens"), (["--trace", "x"], "--trace"), (["--budget", "8"], "--budget")):
        done = python(SCRIPT, *args)
        assert done.returncode == 2 and word in done.stderr and done.stderr.count("\n") == 1, done.stderr


# The recorded programs


@pytest.mark.parametrize(
    "more", [{}, {"splits": 3}, {"window": 20, "splits": 2}, {"block_size": 4, "tile": 64}, {"lengths": (0, 17)}]
)
def test_every_program_reads_its_own_keys_once_and_nothing_else(s17, more):
    from kit.programs import Setup, record

    setup = replace(Setup(), **more)
    recorded = record(s17, setup)
    assert recorded.strays == 0
    for request in range(len(setup.lengths)):
        for head in range(setup.kv_heads):
            mine = [tile for tile in recorded.tiles if tile.program[:2] == (request, head)]
            keys = [key for tile in mine for key in tile.keys]
            assert len(keys) == len(set(keys)) and set(keys) == recorded.mine((request, head, 0))
    assert all(len(tile.keys) <= setup.tile for tile in recorded.tiles)


def with_piece(s17, monkeypatch, folder: Path, text: str) -> None:
    from kit.exercise import graft

    file = folder / "wrong.py"
    file.write_text(f'"""Wrong."""\n@jit\ndef {text}\n', "utf-8")
    for name in ("visible", "slots_of"):
        monkeypatch.setattr(s17, name, getattr(s17, name))
    graft(file, vars(s17))


def test_it_is_the_learners_kernel_that_is_recorded(s17, monkeypatch, tmp_path):
    from kit.drawing import BLAME
    from kit.programs import Setup, describe, record, svg

    def red(recorded) -> bool:
        return BLAME in svg(recorded, len(recorded.tiles)).partition("not this program")[2]

    assert not red(record(s17, Setup()))
    with_piece(
        s17, monkeypatch, tmp_path, "visible(positions, length, WINDOW: tl.constexpr):\n    return positions <= length"
    )
    recorded = record(s17, Setup())
    assert recorded.strays == 3 * 2, "a key too many for each request and KV head"
    assert red(recorded) and "1 of them are not its own" in describe(recorded, len(recorded.tiles))


def test_the_picture_is_pure_and_says_what_is_read(s17):
    from kit.programs import Setup, record, svg

    recorded = record(s17, replace(Setup(), splits=2, tile=32))
    pictures = [svg(recorded, step) for step in range(1, len(recorded.tiles) + 1)]
    assert pictures == [svg(recorded, step) for step in range(1, len(recorded.tiles) + 1)]
    assert len(set(pictures)) == len(pictures) and svg(recorded, 99) == pictures[-1]
    words = "\n".join(ET.fromstring(pictures[0]).itertext())
    assert "Request 0, KV head 0, split 0 of 2" in words and "block table [10, 9, 5]" in words and "12 programs" in words


def test_the_knobs_run_the_kernel_again_and_a_broken_one_is_a_sentence(s17, monkeypatch, tmp_path):
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
    from kit.programs import player

    box = player(s17)
    splits, picture = box.children[0].children[0], box.children[-1]
    before = picture.value
    splits.value = 3
    assert "<svg" in before and "split 0 of 3" in picture.value and picture.value != before
    step = box.children[2].children[1]
    step.value = step.max
    assert f"load {step.max} of {step.max}" in picture.value
    with_piece(
        s17, monkeypatch, tmp_path,
        "slots_of(table, positions, wanted, BLOCK_SIZE: tl.constexpr):\n    return positions.to(tl.int64) * 1000003",
    )  # fmt: skip
    splits.value = 2
    assert "OutOfReach" in picture.value and "outside of its tensors" in picture.value and "<svg" not in picture.value

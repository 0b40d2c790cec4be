"""Kernels as exercises, batches made to be misread, compilation ahead of time and the benchmark: what s17 and s18 stand on."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from place import ROOT, grade, lacks, run

MISSING = lacks("s17_triton_decode")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Triton has no package for macOS and Windows"),
    pytest.mark.skipif(bool(MISSING) and not os.environ.get("CI"), reason=f"not installed: {MISSING}"),
]
ANSWERS = '''"""A lesson with kernels."""

from __future__ import annotations

import sys

from kit.exercise import exercise, summary
from kit.gpu import DEVICE, jit, tl, torch


@exercise
@jit
def double(x):
    """A piece."""
    return 2 * x


@exercise
@jit
def quadruple(x):
    """A piece that calls another."""
    # a comment that belongs to the body
    return double(double(x))


@exercise
@jit
def fill_kernel(out, value):
    """A kernel that is launched."""
    tl.store(out + tl.program_id(0), value)


@jit
def apply_kernel(out, N: tl.constexpr):
    """Given: it calls the pieces."""
    i = tl.arange(0, N)
    tl.store(out + i, quadruple(i))


def apply() -> list[int]:
    out = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    apply_kernel[(1,)](out, N=4)
    return out.tolist()


def fill() -> list[int]:
    out = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    fill_kernel[(3,)](out, 7)
    return out.tolist()


if __name__ == "__main__":
    print(apply(), fill())
    print(summary("s42_kernels"), file=sys.stderr)
'''
OTHER = '''"""A second lesson, which builds on the first one's pieces."""

from __future__ import annotations

from kit.exercise import exercise
from kit.gpu import DEVICE, jit, tl, torch
from s42_kernels import double


@exercise
@jit
def twice(x):
    """A piece."""
    return double(x)


@jit
def twice_kernel(out):
    tl.store(out, twice(21))


def answer() -> int:
    out = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    twice_kernel[(1,)](out)
    return int(out[0])
'''
TESTS = (
    "from s42_kernels import apply, fill\n"
    "def test_apply():\n    assert apply() == [0, 4, 8, 12]\n"
    "def test_fill():\n    assert fill() == [7, 7, 7]\n"
)


@pytest.fixture
def small(tmp_path) -> Path:
    """A course of two small lessons with kernels, cut."""
    files = ["tools/cut.py", "tests/conftest.py", "solutions/kit.py"]
    files += [f"code/kit/{name}.py" for name in ("__init__", "errors", "exercise", "gpu", "reach")]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "solutions/s42_kernels.py").write_text(ANSWERS, "utf-8")
    (tmp_path / "solutions/s43_other.py").write_text(OTHER, "utf-8")
    (tmp_path / "tests/test_s42_kernels.py").write_text(TESTS, "utf-8")
    (tmp_path / "tests/test_s43_other.py").write_text(
        "from s43_other import answer\ndef test_answer():\n    assert answer() == 42\n", "utf-8"
    )
    assert run(sys.executable, "tools/cut.py", cwd=tmp_path).returncode == 0
    return tmp_path


def solve(course: Path, name: str, body: str, lesson: str = "s42_kernels") -> None:
    file = course / f"code/{lesson}.py"
    before, mark, after = file.read_text("utf-8").partition(f"def {name}(")
    file.write_text(before + mark + after.replace("raise NotImplementedError", body, 1), "utf-8")


def line_of(course: Path, name: str) -> int:
    """The line of an exercise's one statement."""
    lines = (course / "code/s42_kernels.py").read_text("utf-8").splitlines()
    return 1 + lines.index("    raise NotImplementedError", lines.index(next(x for x in lines if f"def {name}(" in x)))


def test_nothing_is_missing_where_everything_has_to_be_checked():
    if os.environ.get("CI"):
        assert not MISSING, f"CI runs without {MISSING}"
    assert importlib.util.find_spec("torch") and importlib.util.find_spec("triton")


def test_a_kernel_is_cut_like_a_function_and_the_cut_is_checked(small):
    text = (small / "code/s42_kernels.py").read_text("utf-8")
    assert text.count("@exercise\n@jit\n") == text.count("    raise NotImplementedError\n") == 3
    assert "belongs to the body" not in text and "quadruple(i)" in text
    assert run(sys.executable, "tools/cut.py", "--check", cwd=small).returncode == 0
    solve(small, "double", "y = x + x\n    return y")
    assert run(sys.executable, "tools/cut.py", "--check", cwd=small).returncode == 0
    file = small / "code/s42_kernels.py"
    file.write_text(file.read_text("utf-8").replace("quadruple(i)", "quadruple(i + 1)"), "utf-8")
    done = run(sys.executable, "tools/cut.py", "--check", cwd=small)
    assert done.returncode == 1 and "apply_kernel differs from solutions/" in done.stdout


def test_in_a_script_unwritten_kernels_are_borrowed_and_call_the_learners_pieces(small):
    answers, mine = (run(sys.executable, f"{folder}/s42_kernels.py", cwd=small) for folder in ("solutions", "code"))
    assert answers.stdout == mine.stdout == "[0, 4, 8, 12] [7, 7, 7]\n", mine.stderr
    assert "s42_kernels: borrowed: double, quadruple, fill_kernel" in mine.stderr
    solve(small, "double", "return 3 * x")
    mine = run(sys.executable, "code/s42_kernels.py", cwd=small)
    assert mine.stdout == "[0, 9, 18, 27] [7, 7, 7]\n" and "yours: double | borrowed: quadruple, fill_kernel" in mine.stderr
    assert run(sys.executable, "code/s42_kernels.py", "--solutions", cwd=small).stdout == answers.stdout


def test_in_its_own_tests_an_unwritten_kernel_is_a_todo_with_its_line(small):
    result = grade(small, "tests/test_s42_kernels.py")
    assert (result["passed"], result["failed"], result["exit"]) == (0, [], 1), result["output"]
    where = {todo["test"].rpartition("::")[2]: (todo["where"], todo["exercise"]) for todo in result["todo"]}
    assert where == {
        "test_apply": (f"code/s42_kernels.py:{line_of(small, 'quadruple')}", "quadruple"),
        "test_fill": (f"code/s42_kernels.py:{line_of(small, 'fill_kernel')}", "fill_kernel"),
    }
    solve(small, "quadruple", "return double(x) + double(x)")
    result = grade(small, "tests/test_s42_kernels.py", "-k", "apply")
    assert [todo["exercise"] for todo in result["todo"]] == ["double"], "a piece of a piece"
    solve(small, "double", "return x + x")
    solve(small, "fill_kernel", "tl.store(out + tl.program_id(0), value)")
    assert grade(small, "tests/test_s42_kernels.py")["passed"] == 2


def test_a_compiled_launch_asks_for_what_is_unwritten_before_anything_is_compiled(small):
    program = """
import sys
sys.path.insert(0, "code")
from kit import exercise
exercise.strict.add("s42_kernels")
import s42_kernels as lesson
from kit.gpu import INTERPRETED
assert not INTERPRETED and type(lesson.apply_kernel).__name__ == "JITFunction"
for launch in (*lesson.apply_kernel.pre_run_hooks, lesson.fill_kernel[(3,)], lesson.double):
    try:
        launch()
    except exercise.NotWritten as error:
        print(error)
"""
    done = run(sys.executable, "-c", program, cwd=small, TRITON_INTERPRET="0")
    names = re.findall(r"code/s42_kernels.py:\d+ (\w+) is not written yet", done.stdout)
    assert names == ["quadruple", "fill_kernel", "double"], done.stdout + done.stderr


def test_an_error_inside_a_kernel_reads_like_any_other(small):
    solve(small, "double", "return x.nothing")
    solve(small, "quadruple", "return double(double(x))")
    (failure,) = grade(small, "tests/test_s42_kernels.py", "-k", "apply")["failed"]
    line = 1 + (small / "code/s42_kernels.py").read_text("utf-8").splitlines().index("    return x.nothing")
    assert failure["where"] == f"code/s42_kernels.py:{line}"
    assert failure["message"].startswith("AttributeError: ") and "InterpreterError" not in failure["message"]


def test_a_piece_is_lent_to_a_later_lesson_unless_mine_is_asked_for(small):
    solve(small, "twice", "return double(x)", "s43_other")
    solve(small, "double", "return 5 * x")
    assert grade(small, "tests/test_s43_other.py")["passed"] == 1
    (failure,) = grade(small, "tests/test_s43_other.py", "--mine")["failed"]
    assert "105 == 42" in failure["message"]


def test_a_wrong_answer_replaces_a_piece_for_the_kernels_that_call_it(small):
    wrong = small / "wrong/s42_kernels/misread.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text('"""Thrice."""\n@jit\ndef double(x):\n    return 3 * x\n', "utf-8")
    result = grade(small, "tests/test_s42_kernels.py", "--solutions", COURSE_WRONG_ANSWER=str(wrong))
    assert result["passed"] == 1 and "[0, 9, 18, 27] == [0, 4, 8, 12]" in result["failed"][0]["message"], result["output"]


HIDE = """
import sys
sys.modules.update(dict.fromkeys({names}))
sys.path.insert(0, "{folder}")
from kit import gpu
"""


@pytest.mark.parametrize("folder", ["solutions", "code"])
def test_without_triton_everything_but_kernels_works(folder):
    program = HIDE.format(names=["triton", "triton.language"], folder=folder) + (
        "import s17_triton_decode as s17, s18_triton_prefill as s18\n"
        "from kit.errors import CourseError\n"
        "from kit.ragged import ragged, reference, relative_error\n"
        "batch = ragged(0, [5, 0, 17])\n"
        "print(relative_error(s17.gathered_attention(*batch.decode), reference(batch)) < 1e-12, s17.splits_for(1, 8, 4096, 64, 100))\n"
        "for call in (lambda: s17.paged_decode(*batch.decode), lambda: s18.paged_attention(*batch.mixed)):\n"
        "    try:\n        call()\n    except CourseError as error:\n        print(error)\n"
    )
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    first, *said = done.stdout.splitlines()
    assert first == "True 32" and [line[:18] for line in said] == ["s17 needs Triton: ", "s18 needs Triton: "]


def test_without_torch_the_lessons_can_be_imported_and_say_what_to_install():
    names = ["torch", "triton", "triton.language"]
    program = (
        HIDE.format(names=names, folder="solutions")
        + "import s17_triton_decode, s18_triton_prefill\nprint(gpu.lacking())\n"
    )
    done = run(sys.executable, "-c", program)
    assert done.stdout.startswith("needs torch: pip install -r requirements-kernels.txt"), done.stderr


# Batches made to be misread

WRONG = {
    "off by one": ("visible", "return positions < length - 1", "the newest token is left out"),
    "reads the block's rest": (
        "visible",
        "return positions < (length + 15) // 16 * 16",
        "the rest of a request's last block",
    ),
    "reads without end": ("visible", "return positions < 1000", "what must not be read is read"),
    "no block table": ("slots_of", "return positions.to(tl.int64)", "the block table was not asked"),
}


@pytest.fixture(scope="module")
def lesson():
    sys.path.insert(0, str(ROOT / "solutions"))
    return pytest.importorskip("s17_triton_decode")


ASTRAY = {
    "an offset in 32 bits": "return tl.load(table + positions // BLOCK_SIZE, mask=wanted, other=0) * BLOCK_SIZE + positions % BLOCK_SIZE",
    "a wild address": "return positions.to(tl.int64) * 1000003",
    "the table without a mask": "return tl.load(table + 100000 * positions).to(tl.int64)",
}


def wrong_piece(lesson, folder, monkeypatch, piece: str, body: str) -> None:
    """Put another body into a piece of s17, until the test ends."""
    from kit import exercise

    signature = {
        "visible": "positions, length, WINDOW: tl.constexpr",
        "slots_of": "table, positions, wanted, BLOCK_SIZE: tl.constexpr",
    }
    file = folder / "wrong.py"
    file.write_text(f'"""Wrong."""\n@jit\ndef {piece}({signature[piece]}):\n    {body}\n', "utf-8")
    monkeypatch.setattr(lesson, piece, getattr(lesson, piece))
    exercise.graft(file, vars(lesson))


@pytest.mark.parametrize("name", ASTRAY)
def test_an_address_outside_of_the_tensors_is_an_error_with_its_line_not_a_crash(lesson, tmp_path, monkeypatch, name):
    from kit import ragged

    wrong_piece(lesson, tmp_path, monkeypatch, "slots_of", ASTRAY[name])
    batch = ragged.ragged(3, ragged.edges(16), dtype="float16", far=True)
    with pytest.raises(Exception, match=r"outside of its tensors, the nearest is .* make a block or slot int64"):
        lesson.paged_decode(*batch.decode)


def test_every_load_and_store_can_be_observed(lesson):
    from kit import ragged, reach

    seen = []
    batch = ragged.ragged(0, [3, 20], num_kv_heads=1)
    with reach.observed(lambda program, kind, addresses: seen.append((program, kind, addresses))):
        lesson.paged_decode(*batch.decode, num_splits=1)
    first = batch.k_cache.data_ptr()
    offsets = {(p[0], (int(a) - first) // 4 // 64) for p, kind, all_ in seen if kind == "load" for a in all_}
    keys = {(p, slot) for p, slot in offsets if 0 <= slot < batch.k_cache.numel() // 64}
    assert keys == {(i, slot) for i in range(2) for slot in batch.slots(i).tolist()}
    assert {p for p, kind, _ in seen if kind == "store"} == {(0, 0, 0), (1, 0, 0)}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_ends_in_a_message_that_names_the_mistake(lesson, tmp_path, monkeypatch, name):
    from kit import ragged

    piece, body, cause = WRONG[name]
    wrong_piece(lesson, tmp_path, monkeypatch, piece, body)
    batch = ragged.ragged(3, [*ragged.edges(16), 70])
    with ragged.poisoned():
        found = ragged.verdict(lesson.paged_decode(*batch.decode), batch, tile=lesson.tile_for(batch.q))
    assert found.wrong and cause in found.cause, found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_answer_is_right_wherever_the_blocks_lie(lesson, dtype):
    from kit import ragged

    for far in (False, dtype != "float32"):
        batch = ragged.ragged(1, ragged.edges(16), shared=1, dtype=dtype, far=far)
        with ragged.poisoned():
            found = ragged.verdict(lesson.paged_decode(*batch.decode), batch)
        assert not found.wrong, found


def test_a_batch_is_ragged_shuffled_shared_and_full_of_traps(lesson):
    from kit import ragged

    batch = ragged.ragged(0, [40, 33, 0, 16], [3, 1, 0, 16], shared=2)
    tables = batch.block_tables.tolist()
    assert tables[0][:2] == tables[1][:2] and tables[0][2] != tables[1][2], (
        "two full blocks before their queries are shared"
    )
    assert all(row[blocks:] == [batch.trap] * (5 - blocks) for row, blocks in zip(tables, (3, 3, 0, 1)))
    stored = ~batch.k_cache.isnan().flatten(0, 1).all(-1).all(-1)
    used = {slot for i in range(4) for slot in batch.slots(i).tolist()}
    assert {i for i, there in enumerate(stored.tolist()) if there} == used and len(used) == 40 + 1 + 16
    k_cache, _, k, _, slots = batch.to_write()
    assert len(slots) == 20 and k_cache.flatten(0, 1)[slots].isnan().all() and not k.isnan().any()
    assert ragged.random_batch(5).block_tables.equal(ragged.random_batch(5).block_tables)


def test_each_mistake_that_can_be_named_changes_the_result_and_is_named(lesson):
    from kit import ragged

    batch = ragged.ragged(2, [70, 100, 33, 1], [70, 5, 1, 1])
    named = 0
    for cause, wrong in ragged._simulated(batch, 20, 16):
        found = ragged.verdict(wrong.float(), batch, 20, tile=16)
        named += found.cause == cause or "NaN" in found.cause
        assert found.wrong, cause
    assert named >= 15, "a few have the same effect as another one before them"


def test_every_mistake_is_far_away_from_rounding(lesson):
    from kit import ragged

    batch = ragged.ragged(3, [40, 100, 150, 200], group=2, num_kv_heads=2)
    errors = ragged.errors_of_mistakes(batch, tile=64)
    assert len(errors) >= 12 and min(errors.values()) > 10 * ragged.TOLERANCE["bfloat16"], errors


# Ahead of time


def compile_kernels(*args: str, timeout: float = 170):
    return run(sys.executable, "tools/compile_kernels.py", *args, timeout=timeout)


def test_the_kernels_compile_for_four_chips_without_spills_and_within_their_memory():
    done = compile_kernels("--quick", "--only", "mixed-")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(mixed-\S+) +(sm_\d+|gfx942) +(\d+) +(\d+) +(\d+) +([\d,]+)$", done.stdout, re.M)
    assert len(rows) == 3 * 4 and all(int(registers) > 30 for _, _, registers, *_ in rows)
    assert all(spills == "0" for _, target, _, spills, *_ in rows if target.startswith("sm_"))
    kept = (ROOT / "bench/kernels.txt").read_text("utf-8")
    if done.stdout.split(":")[0] == kept.split(":")[0]:  # the same Triton
        lines = {tuple(line.split()) for line in kept.splitlines()}
        assert all(row in lines for row in rows), (
            "bench/kernels.txt is old: python3 tools/compile_kernels.py > bench/kernels.txt"
        )
    hints = re.findall(r"^mixed-(\S+)\S* +sm_80 +(with|without) .* (\d+) bytes +(\d+) +(\d+)$", done.stdout, re.M)
    usual = {(kind[:4], word): int(size) for kind, word, size, *_ in hints}
    assert usual["bf16", "with"] == 16 and usual["bf16", "without"] == 2, "the hint is what makes loads wide"


@pytest.mark.parametrize(
    ("only", "tile", "target", "words"),
    [("mixed-fp32-128", "128", "sm_80", "spills"), ("decode-fp32-128", "256", "sm_86", "bytes of shared memory")],
)
def test_the_check_of_the_kernels_can_fail(only, tile, target, words):
    done = compile_kernels("--quick", "--only", only, "--tile", tile, "--target", target)
    assert done.returncode == 1 and words in done.stdout.splitlines()[-1], done.stdout + done.stderr


def test_what_the_compiler_refuses_is_a_sentence():
    done = compile_kernels("--quick", "--only", "decode-bf16", "--tile", "8", "--target", "sm_80")
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done.stdout + done.stderr
    assert (
        done.stderr.startswith("decode-bf16-128-g4-b16 on sm_80 is refused by the compiler: ") and "K >= 16" in done.stderr
    )


def test_the_compiled_kernels_are_asked_for_by_names_that_exist():
    done = compile_kernels("--only", "nothing")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


# The benchmark


@pytest.fixture
def bench(monkeypatch):
    spec = importlib.util.spec_from_file_location("bench_paged_attention", ROOT / "bench/paged_attention.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_the_benchmark_says_so_and_what_it_would_move(bench, capsys):
    if bench.gpu.DEVICE != "cpu":
        pytest.skip("there is a GPU")
    assert bench.main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Nothing is measured, for no GPU is found here") and said.count("Llama-3-8B") == 10
    row = next(line.split() for line in said.splitlines() if re.search(r"Llama-3-8B +256 +2,048", line))
    kv = 2 * 2 * 256 * 2048 * 8 * 128
    assert row[3] == f"{kv / 2**20:,.1f}" and float(row[4].replace(",", "")) == pytest.approx(kv / 1e6, rel=0.01)


def test_the_benchmark_compares_before_it_times_and_leaves_out_what_does_not_fit(bench, monkeypatch):
    monkeypatch.setattr(bench, "milliseconds", lambda call: (call(), 1.0)[1])
    shape = bench.Shape("tiny", 8, 2, 64)
    rows, copied = bench.measure([bench.Case(shape, 2, 40), bench.Case(shape, 10**6, 10**6)], 4096, 1e9)
    assert {"ours ms", "sdpa ms", "gather + sdpa ms", "of copy"} <= set(rows[0]) and "ours ms" not in rows[1]
    assert "too large" in bench.told(rows, copied) and json.dumps(rows)
    monkeypatch.setattr(bench, "sdpa", lambda q, k, v: q)
    with pytest.raises(bench.CourseError, match="differ by"):
        bench.measure([bench.Case(shape, 2, 40)], 4096, 1e9)

#!/usr/bin/env python3
"""Compile the kernels of s17 and s18 for GPUs that need not be there, and say what each variant uses of them.

    python3 tools/compile_kernels.py                     all variants, all targets; bench/kernels.txt keeps what it says
    python3 tools/compile_kernels.py --quick             the widest variants
    python3 tools/compile_kernels.py --mine              those of code/ in place of solutions/
    python3 tools/compile_kernels.py --tile 128 --only mixed-fp32-128    what another tile would cost
    python3 tools/compile_kernels.py --splits 256 --only reduce-bf16-128-s128    and more parts to merge

Where the compiler refuses, its reason is printed. Exit code 1 if a variant spills registers on sm_80 or newer, or needs more shared memory than a block of the chip may have: Triton
compiles both without a word. A second table shows the same kernels compiled without the hint that addresses are multiples of
16 bytes. That a kernel compiles does not say that it is right or fast: tests say the one, bench/paged_attention.py the other.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.metadata import version
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from statistics import mode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.gpu import Launch

ROOT = Path(__file__).resolve().parents[1]
# Bytes of shared memory that one block may have. NVIDIA: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability", maximum amount of shared memory per thread block. AMD: CDNA 3 instruction set reference, LDS of a work-group.
SHARED = {
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
    "gfx942": 64 << 10,
}
TARGETS = ["sm_80", "sm_90", "sm_100", "gfx942"]
POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "int32": "*i32", "int64": "*i64"}
SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass
class Compiled:
    """What a variant uses of a target."""

    registers: int = 0
    spills: int = 0  # bytes that go to memory and back (NVIDIA), registers (AMD)
    stack: int = 0  # bytes
    shared: int = 0  # bytes
    loads: list[int] = field(default_factory=list)  # bytes of each load from global memory, async copies included
    copies: int = 0  # asynchronous copies among them


def variants(quick: bool) -> Iterator[tuple[str, Launch]]:
    """(name, launch) of all that is compiled: data types, head sizes, groups and block sizes; the two models' shapes among them."""
    import s17_triton_decode as s17
    import s18_triton_prefill as s18
    from kit.gpu import launches
    from kit.ragged import ragged

    def one(module: Any, kernel: str, *call: Any) -> Launch:
        return [launch for launch in launches(module, *call) if launch.name == kernel][-1]

    shapes = [(4, 16, 0)] if quick else [(1, 8, 0), (2, 16, 0), (4, 16, 0), (4, 16, 128), (16, 256, 0)]
    for dtype, head_dim in [(dtype, head_dim) for dtype in SHORT for head_dim in (64, 128) if head_dim == 128 or not quick]:
        kind = f"{SHORT[dtype]}-{head_dim}"
        for group, block_size, window in shapes:
            options: Any = {
                "dtype": dtype,
                "head_dim": head_dim,
                "num_kv_heads": 8,
                "group": group,
                "block_size": block_size,
            }
            shape = f"{kind}-g{group}-b{block_size}" + (f"-w{window}" if window else "")
            stored = [14 * block_size] * 2  # with two spare ones, 16 entries in a row of the table
            chunks, decodes = ragged(0, stored, [9, 1], **options), ragged(0, stored, [1, 1], **options)
            yield f"decode-{shape}", one(s17, "decode_kernel", s17.paged_decode, *decodes.decode, window, 1)
            yield f"mixed-{shape}", one(s18, "attention_kernel", s18.paged_attention, *chunks.mixed, window)
            if (group, window) == (4, 0):
                yield f"mixed1-{shape}", one(s18, "attention_kernel", s18.paged_attention, *decodes.mixed)
                yield f"write-{shape}", one(s18, "write_kernel", s18.write_kv, *chunks.to_write())
        for splits in (8,) if quick else (2, 8, 64, s17.MOST_SPLITS):
            long = ragged(0, [64 * 64], dtype=dtype, head_dim=head_dim)
            yield f"reduce-{kind}-s{splits}", one(s17, "reduce_kernel", s17.paged_decode, *long.decode, 0, splits)
    if not quick:  # TinyLM: four heads of 32 over two KV heads
        tiny = ragged(0, [14 * 16] * 2, [9, 1], head_dim=32, group=2)
        yield (
            "decode-fp32-32-g2-b16",
            one(s17, "decode_kernel", s17.paged_decode, *ragged(0, [14 * 16], head_dim=32, group=2).decode, 0, 1),
        )
        yield "mixed-fp32-32-g2-b16", one(s18, "attention_kernel", s18.paged_attention, *tiny.mixed, 0)


def compiled(variant: Launch, target: str, hints: bool) -> Compiled:
    """Compile a variant; hints: tell the compiler which arguments are multiples of 16, as a launch does."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    values = {**dict(zip(names, variant.args)), **variant.constants}
    signature, constants, attributes = {}, {}, {}
    for i, name in enumerate(names):
        value = values[name]
        if name in variant.constants:  # a tl.constexpr
            signature[name], constants[(i,)] = "constexpr", value
        elif isinstance(value, (int, float)):
            signature[name] = "i32" if isinstance(value, int) else "fp32"
        else:
            signature[name] = POINTERS[str(value.dtype).removeprefix("torch.")]
        if hints and signature[name] not in ("constexpr", "fp32") and (signature[name] != "i32" or value % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    nvidia = target.startswith("sm_")
    chip = GPUTarget("cuda", int(target[3:]), 32) if nvidia else GPUTarget("hip", target, 64)
    log = StringIO()
    with redirect_stdout(log):  # ptxas' own account, which TRITON_DUMP_PTXAS_LOG prints
        options = {name: value for name, value in variant.constants.items() if name not in names}
        done = triton.compile(ASTSource(variant.kernel, signature, constants, attributes), target=chip, options=options)
    if nvidia:
        found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log.getvalue())
        used = re.search(r"Used (\d+) registers", log.getvalue())
        if not found or used is None:
            raise SystemExit(f"ptxas gave no account of {variant.name} for {target}: {log.getvalue()[-300:]!r}")
        stack, stores, loads = (max(int(row[i]) for row in found) for i in range(3))
        ptx = done.asm["ptx"]
        copies = [
            int(size, 0) for size in re.findall(r"cp\.async\.c[ag]\.shared\.global\s+\[[^]]*\], \[[^]]*\], (\w+)", ptx)
        ]
        plain = re.findall(r"ld\.global[.\w:]*?(?:\.v(\d))?\.[bufs](\d+)", ptx)
        sizes = copies + [int(many or 1) * int(bits) // 8 for many, bits in plain]
        return Compiled(int(used[1]), max(stores, loads), stack, done.metadata.shared, sizes, len(copies))
    said = {key: int(n) for key, n in re.findall(r"\.(\w+):\s+(\d+)\s*$", done.asm["amdgcn"], re.M)}
    spills = said["vgpr_spill_count"] + said["sgpr_spill_count"]
    return Compiled(said["vgpr_count"], spills, said["private_segment_fixed_size"], done.metadata.shared)


def faults(target: str, result: Compiled) -> list[str]:
    """What is wrong with a variant on a target."""
    found = []
    if target.startswith("sm_") and result.spills:
        found.append(f"spills {result.spills} bytes")
    if result.shared > SHARED[target]:
        found.append(f"needs {result.shared:,} bytes of shared memory, a block may have {SHARED[target]:,}")
    return found


_CHOSEN: dict[str, Launch] = {}  # what is compiled, by its name: a kernel can't be sent to another process


def work(task: tuple[str, str, bool]) -> Compiled | str:
    """What a variant uses, or why the compiler refuses it."""
    from triton.compiler.errors import CompilationError

    name, target, hints = task
    try:
        return compiled(_CHOSEN[name], target, hints)
    except CompilationError as error:
        inner: BaseException = error
        while inner.__cause__ is not None:
            inner = inner.__cause__
        reason = str(inner).strip().splitlines()
        return f"{name} on {target} is refused by the compiler: {reason[-1] if reason else type(inner).__name__}"


def rows(names: list[str], targets: list[str], results: dict, mark: Callable) -> Iterator[str]:
    width = max(len(name) for name in names)
    yield f"{'kernel':{width}}  {'target':7}  registers  spills  stack  shared memory"
    for name in names:
        for target in targets:
            r = results[name, target, True]
            line = f"{name:{width}}  {target:7}  {r.registers:9}  {r.spills:6}  {r.stack:5}  {r.shared:13,}"
            yield line + "".join(f"  <- {fault}" for fault in mark(target, r))


def hint_rows(names: list[str], targets: list[str], results: dict) -> Iterator[str]:
    width = max(len(name) for name in names)
    yield f"{'kernel':{width}}  target   hints     registers  spills  usual load  loads  of these async"
    for name in names:
        for target in targets:
            for hints in (True, False):
                r = results[name, target, hints]
                word = "with" if hints else "without"
                yield (
                    f"{name:{width}}  {target:7}  {word:8}  {r.registers:9}  {r.spills:6}  {mode(r.loads):4} bytes"
                    f"  {len(r.loads):5}  {r.copies:14}"
                )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="only the widest variants: head size 128, group 4, blocks of 16"
    )
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="only variants whose name begins so, e.g. decode-bf16-128"
    )
    parser.add_argument("--target", action="append", choices=list(SHARED), help="one of these chips; may be given again")
    parser.add_argument("--tile", type=int, default=0, metavar="N", help="another number of tokens a tile")
    parser.add_argument("--splits", type=int, default=0, metavar="N", help="another number of parts to merge")
    parser.add_argument("--mine", action="store_true", help="the kernels of code/, in place of solutions/")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    args = parser.parse_args(argv)
    targets = args.target or TARGETS

    os.environ["TRITON_INTERPRET"] = "0"
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    sys.path.insert(0, str(ROOT / ("code" if args.mine else "solutions")))
    from kit.errors import CourseError
    from kit.gpu import need

    try:
        need("tools/compile_kernels.py")
    except CourseError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # from the cache there would be no log
        for name, launch in variants(args.quick):
            if name.startswith(args.only):
                for constant, number in (("TILE", args.tile), ("SPLITS", args.splits)):
                    launch.constants.update({constant: number} if number and constant in launch.constants else {})
                _CHOSEN[name] = launch
        names = list(_CHOSEN)
        if not names:
            print(f"no variant's name begins with {args.only!r}", file=sys.stderr)
            return 2
        hinted = [n for n in names if re.match(r"(decode|mixed)-\w+-128-g4-b16$", n)]
        nvidia = [target for target in targets if target.startswith("sm_")][:2]
        tasks = [(name, target, True) for name in names for target in targets]
        tasks += [(name, target, False) for name in hinted for target in nvidia]
        with ProcessPoolExecutor(args.jobs, get_context("fork")) as pool:
            said = dict(zip(tasks, pool.map(work, tasks)))
    results = {task: result for task, result in said.items() if isinstance(result, Compiled)}
    if len(results) < len(said):
        print("\n".join(dict.fromkeys(result for result in said.values() if isinstance(result, str))), file=sys.stderr)
        return 1

    print(
        f"triton {version('triton')}: python3 tools/compile_kernels.py {' '.join(sys.argv[1:] if argv is None else argv)}\n"
    )
    print("\n".join(rows(names, targets, results, faults)))
    print(
        "\nregisters: a thread's. spills: bytes on NVIDIA, registers on AMD. stack: bytes a thread. shared memory: bytes a block."
    )
    if hinted and nvidia:
        print("\nThe same kernels with and without the hint that pointers and table width are multiples of 16:\n")
        print("\n".join(hint_rows(hinted, nvidia, results)))
        print(
            "\nA launch looks at its arguments and gives the hint itself. Without it the compiler can't know that 16 bytes in a row "
            "begin at a\nmultiple of 16: it loads element by element, each with an address in registers of its own. A copy that "
            "runs beside the\narithmetic takes 4 bytes at least, so 16-bit elements are not copied so at all."
        )
    bad = [
        f"{name} on {target} {fault}"
        for name in names
        for target in targets
        for fault in faults(target, results[name, target, True])
    ]
    print(
        "\n"
        + (
            "\n".join(bad)
            or f"{len(names)} variants on {len(targets)} targets: no spills on NVIDIA, shared memory within the limits"
        )
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

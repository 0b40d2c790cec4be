"""How fast s17's decode attention reads the KV cache, against a plain copy, torch and vLLM's own Triton kernel.

python bench/paged_attention.py [--check] [--json FILE]. On a GPU: median milliseconds of each configuration, the second-level
cache emptied between repeats, and the bytes that must be read per second over those of a copy measured in the same run. Without a
GPU: what each configuration must move and compute, and the least time that takes at the published peaks of an A100 and an H100.
"""

# ruff: noqa: E402  (the path comes before what is found on it)

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "solutions"))

from kit import gpu
from kit.errors import CourseError
from kit.report import table
from s03_step_cost import A100, H100

BLOCK_SIZE = 16
TARGET = 0.8  # of the copy's bytes per second, for the configurations that are LARGE
LARGE = 2**30  # bytes of KV: launching and a part-filled last wave of programs no longer count
VLLM_SEGMENTS, VLLM_GRID = (
    16,
    128,
)  # vLLM 0.33, v1/attention/backends/triton_attn.py: NUM_PAR_SOFTMAX_SEGMENTS, MIN_LAUNCH_GRID_SIZE_2D


@dataclass(frozen=True)
class Shape:
    """Attention of one layer of a model, in bfloat16."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Case:
    """A step of decodes: so many requests with so many stored tokens each."""

    shape: Shape
    batch: int
    context: int

    @property
    def kv_bytes(self) -> int:
        return 2 * 2 * self.batch * self.context * self.shape.kv_heads * self.shape.head_dim

    @property
    def bytes(self) -> int:
        """What must be moved once: keys, values, queries, outputs and block tables."""
        rows = 2 * 2 * self.batch * self.shape.heads * self.shape.head_dim
        return self.kv_bytes + rows + 4 * self.batch * -(-self.context // BLOCK_SIZE)

    @property
    def flops(self) -> int:
        """q·k and weights·v: a multiplication and an addition for each element."""
        return 4 * self.batch * self.context * self.shape.heads * self.shape.head_dim


SHAPES = (Shape("Llama-3-8B", 32, 8, 128), Shape("Qwen3-0.6B", 16, 8, 128))
STEPS = (
    (1, 128),
    (1, 2048),
    (1, 32768),
    (16, 128),
    (16, 2048),
    (16, 32768),
    (64, 8192),
    (256, 128),
    (256, 2048),
    (256, 8192),
)
CASES = [Case(shape, *step) for shape in SHAPES for step in STEPS]


def batch_of(case: Case) -> tuple[Any, ...]:
    """q, caches, tables and lengths of a case, its blocks shuffled over the pool."""
    torch, shape = gpu.torch, case.shape
    blocks = -(-case.context // BLOCK_SIZE)
    generator = torch.Generator(device=gpu.DEVICE).manual_seed(0)
    options = {"device": gpu.DEVICE, "dtype": torch.bfloat16, "generator": generator}
    q = torch.randn(case.batch, shape.heads, shape.head_dim, **options)
    k, v = (torch.randn(case.batch * blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim, **options) for _ in range(2))
    order = torch.randperm(case.batch * blocks, device=gpu.DEVICE, generator=generator)
    tables = order.view(case.batch, blocks).int()
    return q, k, v, tables, torch.full((case.batch,), case.context, dtype=torch.int32, device=gpu.DEVICE)


def ours(q: Any, k: Any, v: Any, tables: Any, lengths: Any) -> Callable[[], Any]:
    """s17's launches for a batch, without what its checks ask of the tensors before."""
    import s17_triton_decode as s17

    steps = gpu.launches(s17, s17.paged_decode, q, k, v, tables, lengths)

    def run() -> Any:
        for step in steps:
            step.again()
        return steps[-1].args[0].view_as(q)

    return run


def gather(k: Any, v: Any, tables: Any, lengths: Any) -> tuple[Any, Any]:
    """Keys and values as torch's attention takes them, copied together: [batch, kv_heads, context, head_dim]."""
    longest = int(lengths[0])  # all are equally long
    return tuple(cache[tables.long()].flatten(1, 2)[:, :longest].transpose(1, 2).contiguous() for cache in (k, v))  # type: ignore[return-value]


def sdpa(q: Any, k: Any, v: Any) -> Any:
    """torch's own attention on gathered keys and values."""
    attention = gpu.torch.nn.functional.scaled_dot_product_attention
    return attention(q.unsqueeze(2), k, v, enable_gqa=True).squeeze(2)


def vllm(q: Any, k: Any, v: Any, tables: Any, lengths: Any) -> Callable[[], Any] | None:
    """vLLM's Triton kernel with the buffers that its backend would give it; None where vLLM is not installed."""
    try:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError:
        return None
    torch, (batch, heads, head_dim) = gpu.torch, q.shape
    out, full = torch.empty_like(q), {"dtype": torch.float32, "device": q.device}
    options = {
        "q": q,
        "k": k,
        "v": v,
        "out": out,
        "cu_seqlens_q": torch.arange(batch + 1, dtype=torch.int32, device=q.device),
        "max_seqlen_q": 1,
        "seqused_k": lengths,
        "max_seqlen_k": tables.shape[1] * BLOCK_SIZE,
        "softmax_scale": 1 / math.sqrt(head_dim),
        "causal": True,
        "window_size": (-1, -1),
        "block_table": tables,
        "softcap": 0,
        "q_descale": None,
        "k_descale": torch.ones(batch, k.shape[2], **full),
        "v_descale": torch.ones(batch, k.shape[2], **full),
        "seq_threshold_3D": VLLM_GRID // k.shape[2],
        "num_par_softmax_segments": VLLM_SEGMENTS,
        "softmax_segm_output": torch.empty(batch, heads, VLLM_SEGMENTS, head_dim, **full),
        "softmax_segm_max": torch.empty(batch, heads, VLLM_SEGMENTS, **full),
        "softmax_segm_expsum": torch.empty(batch, heads, VLLM_SEGMENTS, **full),
    }

    def run() -> Any:
        unified_attention(**options)
        return out

    return run


def milliseconds(run: Callable[[], Any]) -> float:
    """Median time of a call on the GPU."""
    from triton.testing import do_bench

    return do_bench(run, return_mode="median")


def copy_bytes_per_s(num_bytes: int) -> float:
    """What a copy of a large tensor reads and writes in a second."""
    source = gpu.torch.ones(num_bytes // 4, dtype=gpu.torch.float32, device=gpu.DEVICE)
    target = gpu.torch.empty_like(source)
    return 2 * num_bytes / milliseconds(lambda: target.copy_(source)) * 1e3


def measure(cases: list[Case], copy_bytes: int, room: float) -> tuple[list[dict[str, Any]], float]:
    """Times of all cases whose tensors fit into `room` bytes, and the copy's bytes per second."""
    copied, rows = copy_bytes_per_s(copy_bytes), []
    for case in cases:
        row: dict[str, Any] = {
            "model": case.shape.name,
            "batch": case.batch,
            "context": case.context,
            "kv_bytes": case.kv_bytes,
        }
        rows.append(row)
        if 2.5 * case.kv_bytes > room:  # the cache, and its gathered copy beside it
            continue
        q, k, v, tables, lengths = batch_of(case)
        run = ours(q, k, v, tables, lengths)
        gathered = gather(k, v, tables, lengths)
        runs = {"ours": run, "sdpa": partial(sdpa, q, *gathered)}
        runs["gather + sdpa"] = lambda q=q, k=k, v=v, t=tables, n=lengths: sdpa(q, *gather(k, v, t, n))
        if other := vllm(q, k, v, tables, lengths):
            runs["vllm"] = other
        want = sdpa(q, *gathered).float()
        for name, call in runs.items():
            error = float((call().float() - want).norm() / want.norm())
            if not error < 2e-2:
                raise CourseError(f"{name} and torch differ by {error:.1e} for {case}: what is wrong is not worth timing")
            row[f"{name} ms"] = milliseconds(call)
        row["of copy"] = case.bytes / row["ours ms"] * 1e3 / copied
        del q, k, v, tables, run, gathered, runs, want
    return rows, copied


def told(rows: list[dict[str, Any]], copied: float) -> str:
    """The table of what was measured."""
    names = ["ours ms", "of copy", "sdpa ms", "gather + sdpa ms", "vllm ms"]

    def cell(row: dict[str, Any], name: str) -> str:
        if name not in row:
            return "too large" if "ours ms" not in row else "not installed"
        return f"{row[name]:.0%}" if name == "of copy" else f"{row[name]:.4f}"

    head = ["model", "batch", "context", "KV MiB", *names]
    body = [
        [r["model"], r["batch"], r["context"], f"{r['kv_bytes'] / 2**20:,.1f}", *(cell(r, n) for n in names)] for r in rows
    ]
    return f"copy: {copied / 1e9:,.0f} GB/s, read and written\n\n" + table(head, body)


def floors(cases: list[Case]) -> str:
    """The table of what must be moved and computed."""

    def floor(case: Case, chip: Any) -> str:
        return f"{1e3 * max(case.bytes / chip.bytes_per_s, case.flops / chip.flops_per_s):.4f}"

    head = ["model", "batch", "context", "KV MiB", "moved MB", "GFLOP", "FLOP/byte", "A100 ms", "H100 ms"]
    body = [
        [
            *(
                c.shape.name,
                c.batch,
                c.context,
                f"{c.kv_bytes / 2**20:,.1f}",
                f"{c.bytes / 1e6:,.2f}",
                f"{c.flops / 1e9:,.3f}",
            ),
            *(f"{c.flops / c.bytes:.1f}", floor(c, A100), floor(c, H100)),
        ]
        for c in cases
    ]
    return table(head, body)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help=f"exit code 1 if a large case stays below {TARGET:.0%} of the copy"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    args = parser.parse_args(argv)
    if gpu.DEVICE == "cpu":
        why = "no GPU is found here" if not gpu.HAS_GPU else "Triton interprets its kernels here"
        print(
            f"Nothing is measured, for {why}: what follows is what each case must move and compute, and the least time for it.\n"
        )
        print(floors(CASES))
        peaks = ", ".join(
            f"{c.name} {c.bytes_per_s / 1e12:g} TB/s and {c.flops_per_s / 1e12:g} TFLOP/s" for c in (A100, H100)
        )
        print(
            f"\nOne layer, bfloat16, blocks of {BLOCK_SIZE}. Least time: the larger of bytes and operations over the published peaks, {peaks}."
        )
        return 0
    torch = gpu.torch
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {gpu.triton.__version__}; bfloat16, blocks of {BLOCK_SIZE}"
    )
    try:
        rows, copied = measure(CASES, 2**30, 0.8 * torch.cuda.mem_get_info()[0])
    except CourseError as error:
        print(error, file=sys.stderr)
        return 2
    print(told(rows, copied))
    large = [row for row in rows if "of copy" in row and row["kv_bytes"] >= LARGE]
    low = [row for row in large if row["of copy"] < TARGET]
    print(f"\n{len(large) - len(low)} of {len(large)} cases with a GiB of KV or more reach {TARGET:.0%} of the copy")
    if args.json:
        args.json.write_text(json.dumps({"copy_bytes_per_s": copied, "rows": rows}, indent=1) + "\n", "utf-8")
    return int(args.check and (bool(low) or not large))


if __name__ == "__main__":
    sys.exit(main())

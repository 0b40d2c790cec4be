"""What s03 shows when it runs: steps on the roofline, a line through a profile, its stairs, and what a batch costs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from kit import options, traces
from kit.report import heading, table

# Llama-3-8B on one A100, every 8 tokens: medians of microsoft/vidur's
# data/profiling/compute/a100/meta-llama/Meta-Llama-3-8B/mlp.csv at commit 41ab8ab, summed over the operators of a layer
# (`add` occurs twice) and times 32 layers. Read on 2026-11-30; attention, LM head and launches are not in it.
EVERY_8 = (
    *((1, 9.76), (2, 9.86), (4, 9.86), (8, 10.05), (16, 10.19), (24, 10.53), (32, 10.98), (40, 11.10), (48, 10.59)),
    *((56, 10.88), (64, 11.30), (72, 12.42), (80, 12.61), (88, 12.69), (96, 12.70), (104, 12.83), (112, 12.98)),
    *((120, 13.20), (128, 13.28), (136, 18.16), (144, 18.26), (152, 18.35), (160, 17.55), (168, 17.63), (176, 17.70)),
    *((184, 16.93), (192, 16.90), (200, 18.59), (208, 18.72), (216, 18.93), (224, 19.20), (232, 19.18), (240, 19.58)),
    *((248, 19.68), (256, 19.62), (264, 26.66), (272, 27.09), (280, 27.22), (288, 26.91), (296, 27.02)),
)
# Fits by others' hands: of all 259 points up to 4,096 tokens, (floor, base, ms per token).
PUBLISHED_FITS = {
    ("A100", "Llama-3-8B"): (10.47, 5.00, 0.0680),
    ("A100", "Llama-2-7B"): (9.44, 3.95, 0.0631),
    ("H100", "Llama-2-7B"): (5.78, 4.15, 0.0196),
}
CONTEXT = 500  # tokens that each decode of the examples has stored


def steps(s03: Any) -> list[tuple[str, list[Any], float]]:
    """The steps of the first table: (name, chunks, modelled ms on an A100 with Llama-3-8B)."""
    cost, found = s03.A100_LLAMA3_8B, []
    for batch in (1, 16, 64, 256):
        chunks = [s03.Chunk(1, CONTEXT)] * batch
        found.append((f"{batch} decode{'s' if batch > 1 else ''}", chunks, cost.step_ns(batch, batch * CONTEXT) / 1e6))
    for prompt in (64, 512, 2048):
        found.append((f"prefill {prompt:,}", [s03.Chunk(prompt)], cost.step_ns(prompt, 0) / 1e6))
    return found


def main(argv: Sequence[str] | None, s03: ModuleType) -> int:
    """The main job of s03. s03: the lesson, so that the learner's own pieces run."""
    return options.run(lambda: _main(options.parse("s03_step_cost", argv), s03))


def _main(args: argparse.Namespace, s03: Any) -> int:
    if args.trace:
        return _trace(args, s03)
    cost = s03.A100_LLAMA3_8B
    print("Every millisecond below is modelled, from published profiles, for the GPU and model that stand beside it.")
    data = {
        "steps": _roofline(s03, cost),
        "fits": _fits(s03),
        "stairs": _stairs(s03, cost),
        "twice": _twice(s03),
        "prices": _prices(cost),
    }
    options.json_out(args, data)
    return 0


def _roofline(s03: Any, cost: Any) -> list[Any]:
    gpu, model = s03.A100, s03.LLAMA3_8B
    heading("1. What a step computes, and what it moves")
    print(f"Llama-3-8B: {model.weights:,} weights in the layers, {s03.BYTES * model.weights / 1e9:.2f} GB; "
          f"{model.kv_bytes:,} bytes of KV a token.\n{gpu.name}: {gpu.flops_per_s / 1e12:.0f} TFLOP/s, "
          f"{gpu.bytes_per_s / 1e12:.3f} TB/s, so the ridge is at {gpu.ridge:.0f} FLOPs a byte. "
          f"Each decode has {CONTEXT} tokens stored.\n")  # fmt: skip
    rows = []
    for name, chunks, ms in steps(s03):
        work, moved = s03.flops(model, chunks), s03.traffic(model, chunks)
        bound = "memory" if work / moved < gpu.ridge else "arithmetic"
        best = s03.roofline_ms(gpu, work, moved)
        rows.append((name, f"{work / 1e12:.3f}", moved / 1e9, work / moved, bound, best, ms, f"{100 * best / ms:.0f}%"))
    print(table(("step", "TFLOP", "GB moved", "FLOP/byte", "decided by", "roofline ms", "profile ms", "reached"), rows))
    name, chunks, ms = steps(s03)[-1]
    work = s03.flops(model, chunks)
    matrices = 2 * model.weights * sum(chunk.new for chunk in chunks)
    print(f"\nroofline: the bound of the data sheet; profile: {cost.label}. A prompt's own attention is in the\n"
          f"bound and not in the profile: it is {100 * (1 - matrices / work):.0f}% of the FLOPs of {name}, "
          f"which without it reaches {100 * s03.roofline_ms(gpu, matrices, s03.traffic(model, chunks)) / ms:.0f}%.")  # fmt: skip
    return rows


def _fits(s03: Any) -> list[Any]:
    heading("2. A floor and a line")
    print("fit() of the ten points in this file; beside it the fit of all 259 points of the same source.\n")
    rows = []
    for cost in s03.COSTS[:3]:
        ours, theirs = s03.fit(cost.profile), s03.Fit(*PUBLISHED_FITS[cost.gpu, cost.model])
        for name, f, points in (("10 points", ours, cost.profile), ("259 points", theirs, cost.profile)):
            worst = max(abs(f.step_ms(n) - ms) / ms for n, ms in points)
            rows.append((f"{cost.gpu}, {cost.model}", name, f.floor_ms, f.base_ms, 1e3 * f.ms_per_token, f"{f.knee():.0f}",
                         f"{100 * f.error(points):.1f}%", f"{100 * worst:.0f}%"))  # fmt: skip
    print(table(("modelled", "fit of", "floor ms", "base ms", "us/token", "knee", "mean error", "worst"), rows))
    weights = s03.LLAMA3_8B.weights
    per_token = s03.fit(s03.A100_LLAMA3_8B.profile).ms_per_token
    print(f"\nErrors are taken at the ten points. On the line the A100 computes {2 * weights / per_token / 1e9:.0f} TFLOP/s of "
          f"its {s03.A100.flops_per_s / 1e12:.0f} (Llama-3-8B).")  # fmt: skip
    return rows


def _stairs(s03: Any, cost: Any) -> list[Any]:
    heading("3. The stairs")
    print("The published profile at every eighth token, and what lies between (A100, Llama-3-8B).\n")
    line, rows, at = s03.fit(cost.profile), [], dict(EVERY_8)
    for n in (56, 64, 72, 120, 128, 136, 192, 248, 256, 264, 272):
        ms, drawn, before = at[n], cost.step_ns(n, 0) / 1e6 - cost.attention_ms, at[n - 8]
        rows.append((n, f"{ms:.2f}", f"{100 * (ms / before - 1):+.0f}%", f"{line.step_ms(n):.2f}",
                     f"{100 * (line.step_ms(n) / ms - 1):+.0f}%", f"{drawn:.2f}", f"{100 * (drawn / ms - 1):+.0f}%"))  # fmt: skip
    print(table(("tokens", "profile ms", "8 more cost", "fit ms", "off by", "ten points ms", "off by"), rows))
    return rows


def _twice(s03: Any) -> list[Any]:
    heading("4. Which batch makes a step cost twice?")
    print("The smallest batch of decodes whose step takes twice the time of one, by tokens stored for each.\n")
    contexts, rows = (0, 500, 2000, 8000), []
    for cost in s03.COSTS:
        label = cost.label.removeprefix("modelled: ")
        rows.append((label, f"{cost.step_ns(1, 0) / 1e6:.2f}", *(s03.twice(cost, context) for context in contexts)))
    print(table(("modelled", "one ms", *(f"{context:,} stored" for context in contexts)), rows))
    first = s03.A100_LLAMA3_8B
    points = (*EVERY_8, *(point for point in first.profile if point[0] > EVERY_8[-1][0]))
    dense = replace(first, profile=points, _linear_ns={})
    print(f"\nWith every eighth token of the profile in place of ten points the first row reads "
          f"{', '.join(str(s03.twice(dense, context)) for context in contexts)}.")  # fmt: skip
    return rows


def _prices(cost: Any) -> list[Any]:
    heading("5. Prefill against decode")
    print(f"What a token costs in a step of nothing but its kind, {CONTEXT} stored for each decode ({cost.label}).\n")
    rows = []
    for n in (1, 16, 64, 256, 2048):
        prefill, decode = (round(cost.step_ns(n, stored) / n / 1e3) for stored in (0, n * CONTEXT))
        rows.append((n, prefill, decode if n <= 256 else "-"))  # the KV of 2,048 decodes would fill an A100 twice
    print(table(("tokens in the step", "us a prompt token", "us a decoded token"), rows))
    answer = 200 * cost.step_ns(1, CONTEXT + 100) / 1e6
    prompt = cost.step_ns(CONTEXT, 0) / 1e6
    shared = 200 * cost.step_ns(64, 64 * (CONTEXT + 100)) / 64 / 1e6
    print(f"\nA prompt of {CONTEXT} tokens takes {prompt:.0f} ms, an answer of 200 takes {answer:,.0f} ms alone, "
          f"and {shared:.0f} ms as its share of a batch of 64.")  # fmt: skip
    return rows


def alone_ns(cost: Any, prompt: int, output: int) -> tuple[int, int]:
    """(prefill, decode) nanoseconds of a request that has the GPU to itself. The first token comes out of the prefill."""
    decodes = output - 1
    stored = decodes * prompt + decodes * (decodes + 1) // 2
    return cost.step_ns(prompt, 0), decodes * cost.step_ns(1, 0) + round(cost.attention_ns_per_kv_token * stored)


def shared_ns(cost: Any, prompt: int, output: int, batch: int) -> int:
    """Nanoseconds of the same decodes as a share of steps of `batch` requests alike."""
    return round((output - 1) * cost.step_ns(batch, batch * (prompt + output // 2)) / batch)


def _trace(args: argparse.Namespace, s03: Any) -> int:
    """What a real load would cost, request by request."""
    cost, requests = s03.A100_LLAMA3_8B, traces.read_csv(args.trace)
    parts = [(len(request.prompt), request.max_tokens) for request in requests]
    prefill, decode = (sum(column) / 1e9 for column in zip(*(alone_ns(cost, *part) for part in parts)))
    rows = [("prefill alone", prefill, f"{prefill / (prefill + decode):.0%}"),
            ("decode alone", decode, f"{decode / (prefill + decode):.0%}")]  # fmt: skip
    for batch in (16, 64):
        shared = sum(shared_ns(cost, *part, batch) for part in parts) / 1e9
        rows.append((f"decode in batches of {batch}", shared, f"{shared / (prefill + decode):.0%}"))
    hours = (requests[-1].arrival_ns - requests[0].arrival_ns) / 3.6e12
    print(f"{len(requests):,} requests within {hours:.2f} h: {sum(p for p, _ in parts):,} prompt tokens, "
          f"{sum(o for _, o in parts):,} output tokens\nGPU seconds, {cost.label}\n")  # fmt: skip
    print(table(("work", "GPU s", "of all alone"), rows))
    options.json_out(args, rows)
    return 0

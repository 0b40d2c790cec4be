"""s03 adds the price of a step: what it computes, what it moves, and how many nanoseconds that takes.

The shape of the file: `Model` and `GPU`, the facts; `flops`, `traffic` and `roofline_ms`, a bound from first principles;
`CostModel`, which interpolates a published profile; `fit` and `twice`, which ask a profile two questions; the profiles.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import linear_regression, mean
from typing import NamedTuple

from kit.errors import CourseError
from kit.exercise import exercise

BYTES = 2  # of a weight, key or value in bfloat16


@dataclass(frozen=True)
class Model:
    """The shape of a Llama-style decoder. heads: query heads; kv_heads: fewer where queries share keys and values (GQA)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int

    @property
    def weights(self) -> int:
        """Parameters of the layers' matrices: query and output, key and value, gate, up and down. No embedding, no LM head."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def kv_bytes(self) -> int:
        """Bytes that one token leaves in the KV cache: a key and a value in every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES


@dataclass(frozen=True)
class GPU:
    """Peaks of a data sheet: dense bfloat16 FLOP/s, and bytes/s between the memory and the chip."""

    name: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which arithmetic is what takes the time, and below which the memory is."""
        return self.flops_per_s / self.bytes_per_s


class Chunk(NamedTuple):
    """What a step computes for one request: `new` tokens, behind `stored` ones whose KV is in the cache already."""

    new: int
    stored: int = 0


@exercise
def flops(model: Model, step: Sequence[Chunk]) -> int:
    """Floating-point operations of a step, in the layers' matrices and in attention. Roughly 3 lines.

    1. A weight takes part in one multiplication and one addition for each new token: 2 * `model.weights` a token.
    2. A new token attends to every stored token, to the new ones before it and to itself. Count these pairs: a chunk has
       new * stored + new * (new + 1) / 2 of them.
    3. A pair costs, in each layer and each *query* head, 2 * `head_dim` for its score and 2 * `head_dim` for its value.

    Returns a whole number. Normalisation, activations, softmax and the LM head are left out.
    """
    raise NotImplementedError


@exercise
def traffic(model: Model, step: Sequence[Chunk]) -> int:
    """The least bytes that must cross between memory and chip in a step. Roughly 2 lines.

    1. The weights, `BYTES` each, are read once, however many tokens share them.
    2. Of every request, what is stored is read and what is new is written: `model.kv_bytes` for each of its tokens.

    Activations are left out: they are small, and may stay on the chip.
    """
    raise NotImplementedError


@exercise
def roofline_ms(gpu: GPU, num_flops: float, num_bytes: float) -> float:
    """Milliseconds below which no step can be (Williams, Waterman and Patterson, 2009). Roughly 1 line.

    The chip computes while the memory delivers, so the slower of the two decides, not their sum.
    """
    raise NotImplementedError


@dataclass(frozen=True)
class CostModel:
    """Modelled, never measured: milliseconds of one step for a named GPU and model.

    step(n, kv) = linear(n) + attention_ms + attention_ns_per_kv_token * kv, where `linear` interpolates a published
    profile of the matrix multiplications (microsoft/vidur, medians summed over the layers). Up to the knee
    at 80-90 tokens `linear` is nearly flat, since reading the layers' weights decides (Llama-3-8B: at least 6.85 of the
    9.76 ms); beyond it arithmetic takes over and time grows with the tokens, in the steps of the tiles (256 to 264). Left out: the LM head, prefill's own attention, launches, sampling.

    gpu, model: what the numbers stand for; print them wherever a millisecond is printed.
    profile: (tokens in the step, milliseconds) in increasing order.
    note: what is weaker than a profile, for the label.
    """

    gpu: str
    model: str
    profile: tuple[tuple[float, float], ...]
    attention_ms: float
    attention_ns_per_kv_token: float
    note: str = ""
    _linear_ns: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def label(self) -> str:
        return f"modelled: {self.gpu}, {self.model}" + (f", {self.note}" if self.note else "")

    def step_ns(self, num_tokens: int, kv_tokens: int) -> int:
        """Nanoseconds of a step that computes `num_tokens` while its requests hold `kv_tokens` in the KV cache."""
        linear_ns = self._linear_ns.get(num_tokens)
        if linear_ns is None:
            linear_ns = self._linear_ns[num_tokens] = round(1e6 * (self._interpolate(num_tokens) + self.attention_ms))
        return linear_ns + round(self.attention_ns_per_kv_token * kv_tokens)

    def _interpolate(self, num_tokens: int) -> float:
        """Milliseconds between two points of the profile; beyond its end the last slope goes on."""
        right = min(max(bisect_right(self.profile, (num_tokens, 0.0)), 1), len(self.profile) - 1)
        (n0, ms0), (n1, ms1) = self.profile[right - 1], self.profile[right]
        return ms0 + (ms1 - ms0) * (num_tokens - n0) / (n1 - n0)


@dataclass(frozen=True)
class Fit:
    """A step of n tokens takes max(floor_ms, base_ms + ms_per_token * n): flat while memory decides, then a line."""

    floor_ms: float
    base_ms: float
    ms_per_token: float

    def step_ms(self, num_tokens: float) -> float:
        return max(self.floor_ms, self.base_ms + self.ms_per_token * num_tokens)

    def error(self, profile: Sequence[tuple[float, float]]) -> float:
        """The mean of |fit - time| / time over the points of a profile."""
        return mean(abs(self.step_ms(n) - ms) / ms for n, ms in profile)

    @exercise
    def knee(self) -> float:
        """Tokens at which the line meets the floor: up to there a further token is nearly free. Roughly 1 line."""
        raise NotImplementedError


@exercise
def fit(profile: Sequence[tuple[float, float]]) -> Fit:
    """The flat-then-linear model nearest to a profile. Roughly 8 lines.

    profile: (tokens, milliseconds), tokens increasing. CourseError if it has fewer than three points.

    Try every place where the flat part may end: for k from 1 on, as long as two points are left for the line,
    1. the mean time of the first k points is the floor;
    2. `linear_regression` of the tokens and times of the others gives the line: its `intercept` and its `slope`;
    3. `Fit.error` over *all* points says how good that is.
    Returns the Fit with the smallest error.
    """
    raise NotImplementedError


@exercise
def twice(cost: CostModel, context: int) -> int:
    """The smallest batch of decodes whose step takes at least twice as long as the step of one. Roughly 4 lines.

    context: tokens that *each* request of the batch has in the KV cache. A decode computes one token.
    """
    raise NotImplementedError


LLAMA3_8B = Model("Llama-3-8B", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336)
LLAMA2_7B = Model("Llama-2-7B", layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, intermediate=11008)
A100 = GPU("A100", flops_per_s=312e12, bytes_per_s=2.039e12)  # 80 GB, SXM
H100 = GPU("H100", flops_per_s=989e12, bytes_per_s=3.35e12)  # SXM
RTX_4090 = GPU("RTX 4090", flops_per_s=165.2e12, bytes_per_s=1.008e12)  # accumulating in float32


def _from_fit(a: float, w: float, c: float) -> tuple[tuple[float, float], ...]:
    """The profile of max(a + w, a + c * n) milliseconds, where no other is published."""
    return ((1, a + w), (w / c, a + w), (4096, a + c * 4096))


# Points from microsoft/vidur's profiles of Llama-3-8B on one A100; decode attention from its 24 rows at one context length.
A100_LLAMA3_8B = CostModel(
    gpu="A100",
    model="Llama-3-8B",
    profile=(
        *((1, 9.76), (32, 10.98), (64, 11.33), (128, 13.28), (256, 19.62)),
        *((264, 26.66), (512, 34.85), (1024, 75.55), (2048, 146.4), (4096, 275.4)),
    ),
    attention_ms=0.66,
    attention_ns_per_kv_token=79,
)
# The same source. Attention is that of Llama-3-8B, scaled by the bytes of KV: 4 times as many.
A100_LLAMA2_7B = CostModel(
    "A100", "Llama-2-7B",
    ((1, 9.34), (32, 9.60), (64, 9.76), (128, 12.34), (256, 17.94),
     (264, 22.54), (512, 33.58), (1024, 68.32), (2048, 134.3), (4096, 260.1)),
    0.66, 4 * 79, "attention scaled",
)  # fmt: skip
# The same source. No decode profile of an H100 that respects its bandwidth was found: KV bytes over that bandwidth.
H100_LLAMA2_7B = CostModel(
    "H100", "Llama-2-7B",
    ((1, 5.63), (32, 5.86), (64, 5.92), (128, 6.43), (256, 9.25),
     (264, 9.47), (512, 12.11), (1024, 21.25), (2048, 40.80), (4096, 84.46)),
    0.0, 1e9 * LLAMA2_7B.kv_bytes / H100.bytes_per_s, "attention at full bandwidth",
)  # fmt: skip
# Fits of another project's layer timings (mean errors 3.6 and 3.2 %): no stairs, and flat up to the knee.
H100_LLAMA31_8B = CostModel(
    "H100", "Llama-3.1-8B", _from_fit(5.00, 3.94, 0.0259), 0.0, 1e9 * LLAMA3_8B.kv_bytes / H100.bytes_per_s,
    "fitted, attention at full bandwidth",
)  # fmt: skip
RTX_4090_LLAMA31_8B = CostModel("RTX 4090", "Llama-3.1-8B", _from_fit(5.00, 11.24, 0.0883), 0.41, 150, "fitted")
COSTS = (A100_LLAMA3_8B, A100_LLAMA2_7B, H100_LLAMA2_7B, H100_LLAMA31_8B, RTX_4090_LLAMA31_8B)


def main(argv: list[str] | None = None) -> int:
    import sys

    from kit import step_cost_experiments

    return step_cost_experiments.main(argv, sys.modules[__name__])


if __name__ == "__main__":
    raise SystemExit(main())

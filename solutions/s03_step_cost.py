"""s03 adds the price of a step: how many nanoseconds one forward pass takes, from published profiles.

The shape of the file: the profile, `CostModel`, the models it knows.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CostModel:
    """Modelled, never measured: milliseconds of one step for a named GPU and model.

    step(n, kv) = linear(n) + attention_ms + attention_ns_per_kv_token * kv, where `linear` interpolates a published
    profile of the matrix multiplications (microsoft/vidur, medians summed over the layers). The floor of `linear` is the
    time to read the layers' weights once; beyond the knee at 80-90 tokens arithmetic takes over and time grows with the
    tokens, in the steps of the tiles (256 to 264). Left out: the LM head, prefill's own attention, launches, sampling.

    gpu, model: what the numbers stand for; print them wherever a millisecond is printed.
    profile: (tokens in the step, milliseconds) in increasing order.
    """

    gpu: str
    model: str
    profile: tuple[tuple[int, float], ...]
    attention_ms: float
    attention_ns_per_kv_token: float
    _linear_ns: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def label(self) -> str:
        return f"modelled: {self.gpu}, {self.model}"

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

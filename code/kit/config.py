"""A scheduler's configuration, checked where it enters, in the user's own words."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any

from kit.errors import BadConfig

DEFAULT_MAX_NUM_SEQS = 16
MOST = 100_000_000  # of anything: a pool of as many blocks would be 200 TB
POLICIES = ("fcfs", "shortest", "priority")
ADMISSIONS = ("chunk", "full_prompt", "to_completion")
SLOWEST_AGING, FASTEST_AGING = (
    1e-15,
    1e9,
)  # points: one in eleven days if time is in nanoseconds; beyond any priority in a step
SWITCHES = (
    *("reject_unservable", "allow_small_budget", "chunked_prefill", "prefill_first"),
    *("skip_blocked", "preempt_for_priority", "prefix_caching"),
)


# Options that not every lesson has: the values that mean nothing is asked for, the first lesson that has it, and the last.
OF_SOME: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "policy": (("fcfs", "priority"), "s10", "s13"),
    "admission": (("chunk", "full_prompt"), "s13", "s13"),
    "prefill_first": ((False,), "s11", "s13"),
    "cpu_blocks": ((0,), "s12", "s13"),
    "skip_blocked": ((False,), "s13", "s13"),
    "preempt_for_priority": ((False,), "s13", "s13"),
    "aging_per_step": ((0,), "s13", "s13"),
    "prefix_caching": ((False,), "s14", "s14"),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a scheduler can be told, from s10 on. Names are vLLM's where vLLM has one.

    max_num_batched_tokens: the token budget of one step.
    max_num_seqs: the most requests that run together; unset it is 16, or the token budget if that is smaller.
    num_blocks, block_size: the KV pool, in blocks of so many tokens.
    watermark: share of the pool that admissions leave free (whole blocks, rounded down).
    policy: `fcfs`, `shortest` or `priority`.
    max_model_len: the longest prompt + output the model takes; unset means no limit.
    reject_unservable: refuse at `add` what could never finish. Off only to show what happens without the check.
    allow_small_budget: accept a token budget below max_num_seqs, to show who starves.

    From s11 on:
    chunked_prefill: a prompt may be computed in pieces.
    prefill_first: a step computes prompts or decodes, never both, prompts first.
    long_prefill_token_threshold: the most tokens of one chunk while others are there; 0 means no limit.
    admission: `chunk`: room for the first chunk is enough; `full_prompt`: there must be room for all that it knows;
        `to_completion` (s13): for all that it may ever store, beside what is promised to those who run.
    From s12 on:
    cpu_blocks: KV blocks of CPU memory that victims are swapped to.
    From s13 on:
    skip_blocked: a head that finds no blocks lets others pass.
    preempt_for_priority: with every seat taken, an urgent request takes that of a strictly less urgent one.
    aging_per_step: points by which a priority improves for each nanosecond waited (a replay's step takes one); it
        concerns the policy `priority` only.
    From s14 on:
    prefix_caching: blocks that hold equal tokens from the start of a request on are shared, and kept while nobody needs them.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = None  # type: ignore[assignment]  # resolved below
    num_blocks: int = 4000
    block_size: int = 16
    watermark: float = 0.01
    policy: str = "fcfs"
    max_model_len: int | None = None
    reject_unservable: bool = True
    allow_small_budget: bool = False
    chunked_prefill: bool = True
    prefill_first: bool = False
    long_prefill_token_threshold: int = 0
    admission: str = "chunk"
    cpu_blocks: int = 0
    skip_blocked: bool = False
    preempt_for_priority: bool = False
    aging_per_step: float = 0
    prefix_caching: bool = False

    def __post_init__(self) -> None:
        positive("max_num_batched_tokens", self.max_num_batched_tokens)
        if self.max_num_seqs is None:
            object.__setattr__(self, "max_num_seqs", min(DEFAULT_MAX_NUM_SEQS, self.max_num_batched_tokens))
        for name in ("max_num_seqs", "num_blocks", "block_size"):
            positive(name, getattr(self, name))
        if self.max_model_len is not None:
            positive("max_model_len", self.max_model_len)
        if self.max_num_batched_tokens < self.max_num_seqs and not self.allow_small_budget:
            raise BadConfig(
                f"token budget {self.max_num_batched_tokens} is smaller than max_num_seqs {self.max_num_seqs}: "
                f"a step could not serve all its seats. Raise the budget or lower max_num_seqs"
            )
        if not isinstance(self.watermark, (int, float)) or isinstance(self.watermark, bool) or not 0 <= self.watermark < 1:
            raise BadConfig(f"watermark is {self.watermark!r}; it must be a share of the pool, from 0 up to but not 1")
        if self.policy not in POLICIES:
            raise BadConfig(f"policy {self.policy!r} is unknown; choose {', '.join(POLICIES)}")
        if self.admission not in ADMISSIONS:
            raise BadConfig(f"admission {self.admission!r} is unknown; choose {', '.join(ADMISSIONS)}")
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise BadConfig(f"{name} is {getattr(self, name)!r}; it must be true or false")
        for name in ("long_prefill_token_threshold", "cpu_blocks"):
            positive(name, getattr(self, name), least=0)
        self._check_together()

    def _check_together(self) -> None:
        """Options that make sense only beside others."""
        threshold, longest, aging = self.long_prefill_token_threshold, self.max_model_len, self.aging_per_step
        if longest is not None and threshold > longest:
            raise BadConfig(
                f"long_prefill_token_threshold {threshold} is beyond max_model_len {longest}: it would never cut anything. "
                f"Lower it, or set it to 0"
            )
        if isinstance(aging, bool) or not isinstance(aging, (int, float)) or not 0 <= aging < math.inf:
            raise BadConfig(f"aging_per_step is {aging!r}; it must be a number, at least 0")
        if aging and not SLOWEST_AGING <= aging <= FASTEST_AGING:
            raise BadConfig(
                f"aging_per_step is {str(aging)[:40]}; it must be 0 or from {SLOWEST_AGING:g} to {FASTEST_AGING:g} points"
            )
        if self.prefill_first and self.cpu_blocks:
            raise BadConfig(
                f"prefill_first and cpu_blocks {self.cpu_blocks} exclude each other: who returns from the CPU decodes in the step "
                f"that admits prompts. Leave out prefill_first, or set cpu_blocks to 0"
            )

    @cached_property
    def watermark_blocks(self) -> int:
        """Blocks that an admission must leave free: 1 % of 60 blocks is 0 whole blocks, of 4,000 it is 40."""
        return math.floor(Fraction(str(self.watermark)) * self.num_blocks)  # as written: 0.29 of 100 is 29, not 28.999…

    @property
    def usable_blocks(self) -> int:
        """Blocks that admissions may fill."""
        return self.num_blocks - self.watermark_blocks

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Config:
        """A Config from JSON-like options; an unknown key is refused, with the nearest known one."""
        known = [field.name for field in fields(cls)]
        for key in options:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                raise BadConfig(
                    f"unknown option {key!r}" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
                )
        return cls(**options)


def refuse_ignored(config: Config, lesson: str) -> None:
    """BadConfig for an option that the scheduler of `lesson` ("s14") does not have and would silently ignore."""
    for name, (without, since, until) in OF_SOME.items():
        if getattr(config, name) not in without and not since <= lesson <= until:
            raise BadConfig(
                f"{name} is {getattr(config, name)!r}; {lesson} would ignore it: leave it out, or use "
                + (since if since == until else f"{since} to {until}")
            )


def positive(name: str, value: Any, least: int = 1) -> int:
    """`value`, if it is a whole number of at least `least`; else BadConfig says what it is."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadConfig(f"{name} is {value!r}; it must be a whole number")
    if not least <= value <= MOST:
        raise BadConfig(
            f"{name} is {value}; it must be at least {least}" if value < least else f"{name} is {value}; at most {MOST:,}"
        )
    return value


def above_zero(name: str, value: Any) -> float:
    """`value`, if it is a number above 0; else BadConfig says what it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise BadConfig(f"{name} is {value!r}; it must be a number above 0")
    return value

"""What executes a batch: the protocol, and a runner without a model that still makes definite tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kit.request import Request


class BatchLike(Protocol):
    """The part of a Batch that a runner reads."""

    tokens: dict[Request, int]


class Runner(Protocol):
    """Executes batches. `s08.CostRunner` prices them, later ones run a model."""

    def execute(self, batch: BatchLike) -> tuple[Mapping[str, list[int]], int]:
        """Compute `batch` and return (request id -> its new tokens, nanoseconds taken).

        Only a request whose computed tokens have caught up with its known ones samples, so only those have an entry.
        """
        ...


def sampling(batch: BatchLike) -> list[Request]:
    """The requests of a batch that have caught up, and so sample a token in this step."""
    return [request for request in batch.tokens if request.num_computed_tokens == request.num_tokens]


def fake_token(tokens: list[int]) -> int:
    """A token that depends on the length and the last four tokens, so that a schedule that loses one is found out."""
    value = 7 * len(tokens)
    for token in tokens[-4:]:
        value = (value * 31 + token + 1) % 1_000_003
    return value % 1000


class FakeRunner:
    """A model stand-in for tests and replays: definite tokens, `step_ns` per step whatever the batch.

    stops: request id -> (n, token): its n-th output is that token (the `eos_at` of a replayed case).
    """

    def __init__(self, step_ns: int = 1, stops: Mapping[str, tuple[int, int]] | None = None):
        self.step_ns, self.stops = step_ns, {} if stops is None else stops

    def execute(self, batch: BatchLike) -> tuple[dict[str, list[int]], int]:
        return {request.id: [self._token(request)] for request in sampling(batch)}, self.step_ns

    def _token(self, request: Request) -> int:
        n, token = self.stops.get(request.id, (0, 0))
        return token if n == len(request.output) + 1 else fake_token([*request.prompt, *request.output])  # type: ignore[misc]

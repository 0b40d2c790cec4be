"""The waiting queue: a heap by the policy's key, so that neither its length nor its order costs a step anything."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from kit.request import Request


class WaitingQueue:
    """Requests in the order of `key(request)`; ties go by `request.order`, the order of `add`.

    push, pop: O(log n). head, len: O(1). Iterating gives the order in which they would be served, in O(n log n).
    """

    def __init__(self, key: Callable[[Request], Any]):
        self._key = key
        self._heap: list[tuple[Any, int, Request]] = []

    def push(self, request: Request) -> None:
        """Put a request in its key's place: for a new one under FCFS that is the back, for an evicted one the front."""
        heapq.heappush(self._heap, (self._key(request), request.order, request))

    def head(self) -> Request:
        """The request that is served next; IndexError when nobody waits."""
        return self._heap[0][-1]

    def pop(self) -> Request:
        """Take the head out; IndexError when nobody waits."""
        return heapq.heappop(self._heap)[-1]

    def remove(self, request: Request) -> None:
        """Take out a request from anywhere, in O(n): an abort is rare."""
        self._heap = [entry for entry in self._heap if entry[-1] is not request]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._heap))

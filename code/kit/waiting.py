"""The waiting queue: a heap by the policy's key, so that neither its length nor its order costs a step anything."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from kit.request import Request


class WaitingQueue:
    """Requests in the order of `key(request)`; ties go by `request.order`, the order of `add`.

    push, pop: O(log n). head, len, remove: O(1), spread over many calls. Iterating gives the order in which they would be
    served, in O(n log n).
    """

    def __init__(self, key: Callable[[Request], Any]):
        self._key = key
        self._heap: list[tuple[Any, int, Request]] = []
        self._waiting: dict[Request, tuple[Any, int, Request]] = {}  # who is in the queue; others in the heap have left

    def push(self, request: Request) -> None:
        """Put a request in its key's place: for a new one under FCFS that is the back, for an evicted one the front."""
        entry = self._waiting[request] = (self._key(request), request.order, request)
        heapq.heappush(self._heap, entry)

    def head(self) -> Request:
        """The request that is served next; IndexError when nobody waits."""
        return self._heap[0][-1]

    def pop(self) -> Request:
        """Take the head out; IndexError when nobody waits."""
        request = self._heap[0][-1]
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        """Take out a request from anywhere. ValueError if it does not wait."""
        if self._waiting.pop(request, None) is None:
            raise ValueError(f"{request.id} is not waiting")
        while self._heap and self._waiting.get(self._heap[0][-1]) is not self._heap[0]:
            heapq.heappop(self._heap)  # the head has left, now or earlier

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: Request) -> bool:
        return request in self._waiting

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._waiting.values()))

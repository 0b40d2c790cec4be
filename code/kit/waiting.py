"""The waiting queue: a heap by the policy's key, so that neither its length nor its order costs a step anything.

`TenantQueue` keeps one of them for each tenant, and a heap of the tenants.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from kit.request import Request


class WaitingQueue:
    """Requests in the order of `key(request)`; ties go by `request.order`, the order of `add`.

    push, pop: O(log n). head, len, remove: O(1), spread over many calls. Iterating gives the order in which they would be
    served, each in O(log n), and passes over those who have left since.
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
        heap = self._heap.copy()
        while heap:
            entry = heapq.heappop(heap)
            if self._waiting.get(entry[-1]) is entry:
                yield entry[-1]


class Shares(Protocol):
    """What a TenantQueue asks of a policy (s13's FairShare)."""

    served: dict[str, int]
    left_last: str | None

    def arrive(self, tenant: str, waiting: Iterable[str]) -> None: ...


class TenantQueue(WaitingQueue):
    """A WaitingQueue for each tenant; next is the head of the tenant served least. Methods as there.

    place: request -> (0 for one that goes before every turn, else 1; then its order within its tenant).
    push, pop, head, remove: O(log n), spread over many calls. A tenant's counter only grows, so an entry in the heap of
    tenants is never too late, only too early: it is brought up to date when it comes to the top.
    """

    def __init__(self, place: Callable[[Request], tuple[float, ...]], shares: Shares):
        self._place, self._shares = place, shares
        self._queues: dict[str, WaitingQueue] = {}  # of the tenants for whom somebody waits
        self._tenants: list[tuple[tuple[float, ...], str]] = []  # a heap
        self._entries: dict[str, tuple[tuple[float, ...], str]] = {}  # the one entry in it that counts
        self._length = 0

    def push(self, request: Request) -> None:
        tenant = request.tenant
        if tenant not in self._queues:
            self._shares.arrive(tenant, self._queues)
            self._queues[tenant] = WaitingQueue(self._place)
        self._queues[tenant].push(request)
        self._length += 1
        entry = self._turn(self._queues[tenant].head()), tenant
        if tenant not in self._entries or entry < self._entries[tenant]:
            self._entries[tenant] = entry
            heapq.heappush(self._tenants, entry)

    def head(self) -> Request:
        while True:
            entry = self._tenants[0]
            tenant = entry[-1]
            if self._entries.get(tenant) is not entry:
                heapq.heappop(self._tenants)  # its tenant has left, or has got an earlier one
                continue
            head = self._queues[tenant].head()
            now = self._turn(head), tenant
            if now == entry:
                return head
            self._entries[tenant] = now
            heapq.heapreplace(self._tenants, now)

    def pop(self) -> Request:
        request = self.head()
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        if request not in self:
            raise ValueError(f"{request.id} is not waiting")
        queue = self._queues[request.tenant]
        queue.remove(request)
        self._length -= 1
        self._shares.left_last = request.tenant
        if not queue:
            del self._queues[request.tenant], self._entries[request.tenant]

    def __len__(self) -> int:
        return self._length

    def __contains__(self, request: Request) -> bool:
        return request.tenant in self._queues and request in self._queues[request.tenant]

    def __iter__(self) -> Iterator[Request]:
        """In turn, by the counters as they are when the next is asked for; who has left meanwhile is passed over."""
        rows = {tenant: list(queue)[::-1] for tenant, queue in self._queues.items()}
        while rows:
            tenant = min(rows, key=lambda name: self._turn(rows[name][-1]))
            request = rows[tenant].pop()
            if not rows[tenant]:
                del rows[tenant]
            if request in self:
                yield request

    def _turn(self, request: Request) -> tuple[float, ...]:
        first, *order = self._place(request)
        return (first, self._shares.served.get(request.tenant, 0), *order)

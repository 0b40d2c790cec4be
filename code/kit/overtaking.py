"""A waiting queue in which younger requests may pass older ones, and that counts how often somebody was passed (s14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from kit.request import Request
from kit.waiting import WaitingQueue


class OvertakingQueue(WaitingQueue):
    """A WaitingQueue for subclasses whose `head` is not the first in the order. Iterating still gives that order.

    passed: by how many that stood behind it each request has been passed, since it began to wait.
    """

    def __init__(self, key: Callable[[Request], Any]):
        super().__init__(key)
        self.passed: Counter[Request] = Counter()

    def pop(self) -> Request:
        """Take the head out; all who stand before it in the order have been passed once more."""
        request = self.head()
        self.passed.update(takewhile(lambda other: other is not request, self))
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        super().remove(request)
        self.passed.pop(request, None)

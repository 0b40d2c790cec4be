"""A worker that sees the scheduler's messages and nothing else (s14): block tables and computed counts, rebuilt from differences.

A real worker lives in another process. So the message is text here, and no Request goes through it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from kit.errors import CourseError
from kit.runner import fake_token


class WorkerError(CourseError):
    """A message that doesn't fit what the worker knows. Its text is one sentence."""


def message(output: Any) -> str:
    """A SchedulerOutput as a line of JSON: the whole of what a worker is told about a step."""
    return json.dumps(
        {
            "finished": output.finished,
            "preempted": [request.id for request in output.preempted],
            "new": [[one.id, list(one.prompt), one.blocks, one.num_computed_tokens] for one in output.new],
            "known": [list(one) for one in output.known],
            "tokens": {request.id: n for request, n in output.tokens.items()},
        },
        separators=(",", ":"),
    )


@dataclass
class Known:
    """What a worker keeps of a request: its tokens (the prompt was sent once, the rest it sampled itself), table and count."""

    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0


class Worker:
    """Executes messages. requests: id -> Known, of everybody who was ever new and has not been reported as finished.

    A victim keeps its tokens here and loses its table: when it resumes, no token of it is sent again.
    """

    def __init__(self) -> None:
        self.requests: dict[str, Known] = {}

    def receive(self, line: str) -> dict[str, list[int]]:
        """Take in a message and run its step. Returns id -> one token, for those who have caught up. WorkerError."""
        step = json.loads(line)
        for name in step["finished"]:
            self.requests.pop(name, None)  # unknown here if it ended while it waited
        for name in step["preempted"]:
            victim = self._known(name)
            victim.blocks, victim.num_computed_tokens = [], 0
        for name, prompt, blocks, computed in step["new"]:
            if name in self.requests:
                raise WorkerError(f"{name} is sent as new, but the worker knows it: nobody said that it has finished")
            self.requests[name] = Known(prompt, blocks, computed)
        for name, resumed, blocks, computed in step["known"]:
            known = self._known(name)
            if resumed:
                known.blocks, known.num_computed_tokens = blocks, computed
            elif known.num_computed_tokens != computed:
                raise WorkerError(f"{name} has {known.num_computed_tokens} tokens computed, the message says {computed}")
            else:
                known.blocks += blocks
        sampled = {}
        for name, n in step["tokens"].items():
            known = self._known(name)
            known.num_computed_tokens += n
            if known.num_computed_tokens == len(known.tokens):
                sampled[name] = [fake_token(known.tokens)]
                known.tokens += sampled[name]
        return sampled

    def _known(self, name: str) -> Known:
        if name not in self.requests:
            raise WorkerError(f"{name} is sent as known, but the worker has never seen it")
        return self.requests[name]

    def execute(self, batch: Any) -> tuple[dict[str, list[int]], int]:
        """The Runner's side: what an engine calls."""
        return self.receive(message(batch)), 1

"""What a run looked like: one row per request, one entry per step, and the tables that show them."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import sub
from typing import Any

from kit.errors import NotDone
from kit.request import Request


def percentile(values: Iterable[float], p: float) -> float:
    """The nearest-rank percentile: the smallest value that at least p % of all values do not exceed. NaN of nothing.

    It is always one of the values: the p99 of ten requests is the slowest of them.
    """
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)]


def weighted_percentile(pairs: Iterable[tuple[float, int]], p: float) -> float:
    """`percentile` of values that occur several times each: (value, count) in any order."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    rank = max(1, math.ceil(sum(count for _, count in ordered) * p / 100))
    for value, count in ordered:
        rank -= count
        if rank <= 0:
            return value
    return float("nan")


@dataclass(slots=True)
class Row:
    """One request that has ended. Times are nanoseconds of the virtual clock.

    spans: the runs of consecutive steps in which it got a token, as (first step, last step); a second span means that it
    was evicted in between. first_token_ns is None if it never got one.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    priority: float
    arrival_ns: int
    first_token_ns: int | None
    finish_ns: int
    finish_reason: str
    preemptions: int
    recomputed_tokens: int
    longest_gap_ns: int
    spans: tuple[tuple[int, int], ...]

    @property
    def ttft_ns(self) -> int | None:
        return None if self.first_token_ns is None else self.first_token_ns - self.arrival_ns

    @property
    def ttft_ms(self) -> float:
        return float("nan") if self.first_token_ns is None else (self.first_token_ns - self.arrival_ns) / 1e6


class Report:
    """Everything an engine observed. `record` costs a few C-level operations per request and step.

    rows: the requests that ended, in that order. refused: (request, error) for each that was turned away.
    end: `done`, `stuck` or `max`; diagnosis: who waits for what, if not done. errors: what a runner raised.
    Per step: end_ns, gap_ns (since the step before ended), continuing (requests that got a token in both), num_tokens,
    num_running, num_waiting, used_blocks.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.refused: list[tuple[Request, Exception]] = []
        self.errors: list[str] = []
        self.unfinished: list[Request] = []
        self.end, self.diagnosis, self.head = "running", "", None
        self.num_steps = self.idle_steps = self.preemptions = self.thrown_away = self.tokens_made = 0
        self.end_ns, self.gap_ns, self.continuing = array("q"), array("q"), array("l")
        self.num_tokens, self.used_blocks = array("l"), array("l")
        self.num_running, self.num_waiting = array("l"), array("l")
        self.head_waits: dict[str, int] = {}  # rule -> steps in which it held back the head of the queue
        self.pauses_ns: list[int] = []  # gaps that an eviction tore: longer than a step
        self._open: dict[str, int] = {}  # id -> step in which its current span began
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self._ended: list[Request] = []  # since the last record

    # What an engine calls.

    def record(
        self, end_ns: int, batch: Any, tokens: Mapping[str, list[int]], finished: Iterable[Request], scheduler: Any
    ) -> None:
        """One step that ended at `end_ns`, after the scheduler's update."""
        step, started = self.num_steps, 0
        if self._ended:  # aborted while this step ran: its row is final, and its token reaches nobody
            late = {request.id for request in self._ended if request in batch.tokens}
            tokens = {request_id: new for request_id, new in tokens.items() if request_id not in late}
            self._ended.clear()
        if tokens.keys() != self._open.keys():
            for request_id in [one for one in self._open if one not in tokens]:
                self._close_span(request_id, step - 1)
            for request_id in [one for one in tokens if one not in self._open]:
                self._open[request_id] = step
                started += 1
                spans = self._spans.get(request_id)
                if spans:
                    self.pauses_ns.append(end_ns - self.end_ns[spans[-1][1]])
        self.num_steps += 1
        self.gap_ns.append(end_ns - self.end_ns[-1] if self.end_ns else end_ns)
        self.end_ns.append(end_ns)
        self.continuing.append(len(tokens) - started)
        self.tokens_made += len(tokens)
        self.num_tokens.append(sum(batch.tokens.values()))
        self.num_running.append(len(batch.tokens))
        self.num_waiting.append(len(scheduler.waiting))
        pool = getattr(scheduler, "pool", None)
        self.used_blocks.append(pool.num_blocks - pool.num_free if pool else 0)
        if batch.head:
            self.head_waits[batch.head.rule] = self.head_waits.get(batch.head.rule, 0) + 1
        if batch.preempted:
            self.record_preemptions(batch)
        for request in finished:
            self.end_request(end_ns, request)
        self._ended.clear()

    @property
    def num_open(self) -> int:
        """How many live requests got a token in the last step that `record` saw."""
        return len(self._open)

    def repeat(
        self,
        ends_ns: Sequence[int],
        num_tokens: int,
        num_running: int,
        num_sampled: int,
        num_waiting: int,
        used_blocks: Sequence[int],
        rule: str | None,
        finished: Iterable[Request],
    ) -> None:
        """Steps that were alike, as many calls of `record` would note them. Those who got tokens did in the step before too.

        ends_ns, used_blocks: after each step. rule: what held back the head of the queue. finished: by the last step.
        """
        steps = len(ends_ns)
        self.num_steps += steps
        self.gap_ns.extend(map(sub, ends_ns, [self.end_ns[-1], *ends_ns[:-1]]))
        self.end_ns.extend(ends_ns)
        self.continuing.extend([num_sampled] * steps)
        self.tokens_made += num_sampled * steps
        self.num_tokens.extend([num_tokens] * steps)
        self.num_running.extend([num_running] * steps)
        self.num_waiting.extend([num_waiting] * steps)
        self.used_blocks.extend(used_blocks)
        if rule is not None:
            self.head_waits[rule] = self.head_waits.get(rule, 0) + steps
        for request in finished:
            self.end_request(ends_ns[-1], request)
        self._ended.clear()

    def record_idle(self, batch: Any) -> None:
        """A step that computed nothing."""
        self.idle_steps += 1
        self.record_preemptions(batch)

    def record_preemptions(self, batch: Any) -> None:
        self.preemptions += len(batch.preempted)
        self.thrown_away += batch.thrown_away

    def end_request(self, now_ns: int, request: Request) -> None:
        """A request has ended, for whatever reason; its row is final."""
        self._ended.append(request)
        if request.id in self._open:
            self._close_span(request.id, self.num_steps - 1)
        spans = self._spans.pop(request.id, [])
        self.rows.append(
            Row(
                request.id,
                len(request.prompt),
                request.num_output_tokens,
                request.priority,
                request.arrival_ns,
                self.end_ns[spans[0][0]] if spans else None,
                now_ns,
                str(request.finish_reason),
                request.num_preemptions,
                request.recomputed_tokens,
                self._longest_gap(spans),
                tuple(spans),
            )
        )

    def refuse(self, request: Request, error: Exception) -> None:
        """A request that the scheduler turned away at `add`."""
        request.finish_reason = getattr(error, "reason", "error")
        self.refused.append((request, error))

    def close(self, end: str, scheduler: Any, arrivals: Iterable[Request], head: Any) -> Report:
        """The run is over: how, and if not well, who waits for what. head: why the head of the queue waits."""
        self.end, self.head = end, head
        if end != "done":
            waiting = list(scheduler.waiting)
            self.unfinished = [*scheduler.running, *waiting, *arrivals]
            self.diagnosis = {
                "stuck": f"schedule() has made no progress since step {self.num_steps}",
                "max": f"the load is not done after {self.steps} steps",
            }[end] + f": {len(scheduler.running)} running, {len(waiting)} waiting"
            if waiting and head:
                self.diagnosis += f"; {waiting[0].id} at the head: {head}"
        return self

    def _close_span(self, request_id: str, last_step: int) -> None:
        self._spans.setdefault(request_id, []).append((self._open.pop(request_id), last_step))

    def _longest_gap(self, spans: list[tuple[int, int]]) -> int:
        steady = (max(self.gap_ns[first + 1 : last + 1], default=0) for first, last in spans)
        torn = (self.end_ns[later[0]] - self.end_ns[earlier[1]] for earlier, later in pairwise(spans))
        return max([*steady, *torn], default=0)

    # What a reader asks.

    def gaps(self, row: Row) -> list[tuple[int, int]]:
        """The gaps between one request's tokens as (nanoseconds, how often), in increasing order."""
        counts: dict[int, int] = {}
        for first, last in row.spans:
            for gap in self.gap_ns[first + 1 : last + 1]:
                counts[gap] = counts.get(gap, 0) + 1
        for earlier, later in pairwise(row.spans):
            gap = self.end_ns[later[0]] - self.end_ns[earlier[1]]
            counts[gap] = counts.get(gap, 0) + 1
        return sorted(counts.items())

    def ttft_ms(self, p: float, which: Callable[[Row], bool] = lambda row: True) -> float:
        """Percentile of the time to first token in ms, over the requests that got one and for which `which` holds."""
        return percentile((row.ttft_ms for row in self.rows if row.first_token_ns is not None and which(row)), p)

    def itl_ms(self, p: float) -> float:
        """Percentile of the inter-token gap in ms, over all tokens of all requests, pauses included."""
        steady = zip(self.gap_ns, self.continuing, strict=True)
        return weighted_percentile([*steady, *((pause, 1) for pause in self.pauses_ns)], p) / 1e6

    @property
    def longest_gap_ms(self) -> float:
        return max((row.longest_gap_ns for row in self.rows), default=0) / 1e6

    @property
    def finished(self) -> list[Row]:
        """The rows that ended well."""
        return [row for row in self.rows if row.finish_reason in ("stop", "length")]

    @property
    def duration_s(self) -> float:
        return self.end_ns[-1] / 1e9 if self.end_ns else 0.0

    @property
    def steps(self) -> int:
        """Steps taken, idle ones too."""
        return self.num_steps + self.idle_steps

    @property
    def computed_tokens(self) -> int:
        return sum(self.num_tokens)

    @property
    def rec_new(self) -> float:
        """Tokens thrown away by preemptions / tokens computed for the first time."""
        new = self.computed_tokens - self.thrown_away
        return self.thrown_away / new if new > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of finished requests per second of virtual time."""
        return sum(row.output_tokens for row in self.finished) / self.duration_s if self.duration_s else 0.0

    def summary(self) -> dict[str, Any]:
        """The headline numbers, for JSON and for tables."""
        refusals: dict[str, int] = {}
        for request, _ in self.refused:
            refusals[str(request.finish_reason)] = refusals.get(str(request.finish_reason), 0) + 1
        return {
            "end": self.end,
            "finished": len(self.finished),
            "unfinished": len(self.unfinished),
            "refused": refusals,
            "steps": self.steps,
            "duration_s": self.duration_s,
            "tokens_per_s": self.tokens_per_s,
            "ttft_ms": {"p50": self.ttft_ms(50), "p99": self.ttft_ms(99), "max": self.ttft_ms(100)},
            "itl_ms": {"p50": self.itl_ms(50), "p99": self.itl_ms(99), "longest": self.longest_gap_ms},
            "preemptions": self.preemptions,
            "rec_new": self.rec_new,
        }

    def to_json(self) -> dict[str, Any]:
        """Summary and rows, ready for json.dump; NaN becomes null."""
        rows = [{**asdict(row), "ttft_ms": row.ttft_ms} for row in self.rows]
        refused = [
            {"id": request.id, "reason": request.finish_reason, "why": str(error)} for request, error in self.refused
        ]
        return no_nan({"summary": self.summary(), "requests": rows, "refused": refused})


def done(report: Report, what: str = "the run") -> Report:
    """`report`, if its run ended well; else NotDone with the diagnosis, for numbers of a run that got stuck mislead."""
    if report.end != "done":
        raise NotDone(f"{what} is {report.end}: {report.diagnosis}")
    return report


def whole(value: float) -> float:
    """Rounded; NaN, the percentile of nothing, stays what it is."""
    return value if math.isnan(value) else round(value)


def no_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null in their place, at any depth."""
    if isinstance(value, dict):
        return {key: no_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [no_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def heading(text: str) -> None:
    """Print a heading of a script's output."""
    print(f"\n{text}\n{'=' * len(text)}")


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], indent: str = "  ") -> str:
    """Aligned text: numbers to the right, words to the left; a float is printed with one decimal, NaN as a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(_is_number(cell) for cell in column) for column in zip(*cells, strict=True)] or [False] * len(headers)
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    lines = [headers, ["-" * width for width in widths], *cells]
    return "\n".join(
        indent
        + "  ".join(str(c).rjust(w) if r else str(c).ljust(w) for c, w, r in zip(line, widths, right, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(",", "").replace(".", "").replace("%", "").lstrip("+-").isdigit()


def dump_json(value: Any, file: Any) -> None:
    """Write JSON that another program can diff: indented, keys in the order given."""
    json.dump(value, file, indent=1, allow_nan=False)
    file.write("\n")

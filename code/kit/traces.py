"""Workloads: seeded generators for the lessons' stories, random arrivals and lengths, and a reader of real traces.

Every generator returns fresh requests on each call, the same ones for the same seed on every machine. Prompts are ranges
and outputs are counted (kit.request.Count), so that a million requests stay small: they have lengths and no content.
"""

from __future__ import annotations

import csv
import gc
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import NormalDist

from kit.errors import BadTrace
from kit.options import Progress
from kit.request import MOST_TOKENS, Count, Request

# Random numbers. `random()` and `gammavariate()` alone: their streams are the same in every Python from 3.10 on.


def whole(rng: Random, low: int, high: int) -> int:
    """A whole number from low to high, both included, each as likely."""
    return low + int(rng.random() * (high - low + 1))


def exponential(rng: Random, mean: float) -> float:
    return -math.log(1 - rng.random()) * mean


def lognormal(rng: Random, mu: float, sigma: float, most: int) -> int:
    """A length of 1 to `most` tokens whose logarithm is normal with mean `mu` and deviation `sigma`."""
    normal = NormalDist().inv_cdf(rng.random() or 0.5)  # random() may be 0, which has no place on a normal's axis
    return min(most, max(1, round(math.exp(mu + sigma * normal))))


def poisson(n: int, rate: float, rng: Random) -> list[int]:
    """Arrival times in ns of n requests that come independently of each other, `rate` per second."""
    return _running_sum(exponential(rng, 1e9 / rate) for _ in range(n))


def gamma(n: int, rate: float, cv: float, rng: Random) -> list[int]:
    """Arrival times in ns, `rate` per second on average, with gamma-distributed gaps.

    cv: the gaps' deviation over their mean: 1 is Poisson, more is burstier.
    """
    shape = 1 / cv**2
    return _running_sum(rng.gammavariate(shape, 1e9 / (rate * shape)) for _ in range(n))


def _running_sum(gaps_ns: Iterable[float]) -> list[int]:
    now, times = 0.0, []
    for gap in gaps_ns:
        now += gap
        times.append(round(now))
    return times


def _arrivals(n: int, rate: float | None, rng: Random) -> list[int]:
    """All at once, or a Poisson stream."""
    return [0] * n if rate is None else poisson(n, rate, rng)


def _requests(
    prompts: Sequence[int], outputs: Sequence[int], arrivals_ns: Sequence[int], priorities: Iterable[float] = ()
) -> list[Request]:
    """Requests r0, r1, … with these lengths in tokens."""
    requests = [
        Request(f"r{i}", range(prompt), output, arrival_ns, output=Count())
        for i, (prompt, output, arrival_ns) in enumerate(zip(prompts, outputs, arrivals_ns, strict=True))
    ]
    for request, priority in zip(requests, priorities):
        request.priority = priority
    return requests


# The stories.

LONG_PROMPTS = {14: 700, 23: 1200, 31: 900, 44: 1800, 52: 600}


def story_a(*, burst: bool = False, seed: int = 1) -> list[Request]:
    """A queue that looks healthy: 60 requests, five of them (LONG_PROMPTS) with a prompt beyond a budget of 512.

    50 a second, or all at once; priorities 0, 1, 2 in turn.
    """
    rng = Random(seed)
    prompts = [LONG_PROMPTS.get(i) or whole(rng, 16, 400) for i in range(60)]
    outputs = [whole(rng, 20, 120) for _ in range(60)]
    return _requests(prompts, outputs, _arrivals(60, None if burst else 50, rng), (i % 3 for i in range(60)))


STORY_B = (
    (1461, 1873, 44, 136, 93, 228, 81, 156, 182, 80, 929, 114, 140, 1109, 64, 219, 69, 1324, 194, 146),
    (78, 138, 181, 191, 164, 180, 74, 124, 90, 131, 90, 77, 71, 124, 68, 89, 184, 129, 138, 128),
    (
        *(0, 1115, 1587, 1784, 1967, 1972, 2713, 2761, 3114, 3337),
        *(3402, 3690, 3933, 4331, 5056, 5680, 5983, 6362, 7032, 7562),
    ),
)


def story_b(order_first: Sequence[str] = ()) -> list[Request]:
    """The simulator's twenty requests. Those named in `order_first` arrive at 0, before everyone else."""
    prompts, outputs, arrivals_ms = STORY_B
    requests = _requests(prompts, outputs, [ms * 1_000_000 for ms in arrivals_ms])
    first = [request for name in order_first for request in requests if request.id == name]
    for request in first:
        request.arrival_ns = 0
    return first + [request for request in requests if request not in first]


def story_c(n: int = 200, seed: int = 3, rate: float | None = None) -> list[Request]:
    """Who pays for a policy: 80 % short prompts (32-256 tokens, priority 0), 20 % long (1,000-1,900, priority 1).

    Outputs are exponential with mean 100, at most 400. All at once, or `rate` a second.
    """
    rng = Random(seed)
    long = [rng.random() < 0.2 for _ in range(n)]
    prompts = [whole(rng, 1000, 1900) if is_long else whole(rng, 32, 256) for is_long in long]
    outputs = [min(400, math.ceil(exponential(rng, 100))) for _ in range(n)]
    return _requests(prompts, outputs, _arrivals(n, rate, rng), map(int, long))


def story_d(n: int = 200, seed: int = 4, rate: float | None = None, large: float | None = None) -> list[Request]:
    """Two budgets: prompts of 16-160 tokens, a share `large` of them 400-850; outputs 16-96.

    All at once, or `rate` a second. Unless told, a burst has 20 % large ones, a stream has none.
    """
    rng = Random(seed)
    if large is None:
        large = 0.2 if rate is None else 0.0
    prompts = [whole(rng, 400, 850) if rng.random() < large else whole(rng, 16, 160) for _ in range(n)]
    outputs = [whole(rng, 16, 96) for _ in range(n)]
    return _requests(prompts, outputs, _arrivals(n, rate, rng))


def story_e(n: int = 60, seed: int = 5) -> list[Request]:
    """Front or back: a burst of prompts of 50-300 tokens with 50-200 outputs."""
    rng = Random(seed)
    prompts = [whole(rng, 50, 300) for _ in range(n)]
    return _requests(prompts, [whole(rng, 50, 200) for _ in range(n)], [0] * n)


def story_f(n: int = 200, seed: int = 6) -> list[Request]:
    """Static against continuous: a burst of prompts of 32 tokens, outputs exponential with mean 100."""
    rng = Random(seed)
    return _requests([32] * n, [math.ceil(exponential(rng, 100)) for _ in range(n)], [0] * n)


EIGHT_SLOTS = 4
EIGHT_OUTPUTS = (2, 8, 3, 5, 6, 1, 4, 3)


def eight() -> list[Request]:
    """The example of s08 and s09: r0 … r7, all there from the start, prompts of 4 tokens, outputs EIGHT_OUTPUTS.

    In four slots static batching takes 8 + 6 steps, continuous batching 8.
    """
    return [Request(f"r{i}", range(4), outputs) for i, outputs in enumerate(EIGHT_OUTPUTS)]


def running_example() -> list[Request]:
    """s10's four requests (budget 8, four sequences, five blocks of 4): A 3->6, B 4->5, C 5->3, D 2->3.

    Their outputs are stored, so that a runner which makes real tokens can take them too.
    """
    return [Request(name, range(prompt), output) for name, prompt, output in zip("ABCD", (3, 4, 5, 2), (6, 5, 3, 3))]


def evil_twin() -> list[Request]:
    """The same limits, A 4->8, B 4->8, D 2->3: without the check at `add` it stalls for ever."""
    return [Request(name, range(prompt), output) for name, prompt, output in zip("ABD", (4, 4, 2), (8, 8, 3))]


# Traffic like a real service's.

# (mu, sigma, longest) of prompt and output, requests per second, cv of the gaps.
AZURE = {
    "conv": ((6.898, 0.61, 14_050), (5.000, 0.66, 1_000), 5.53, 1.09),
    "code": ((7.292, 0.88, 7_437), (2.535, 1.28, 1_899), 2.57, 13.15),
}


def azure_like(kind: str, n: int, seed: int, rate: float | None = None) -> list[Request]:
    """Synthetic traffic that follows the published statistics of the Azure LLM inference traces of 2023.

    kind: `conv` (chat) or `code` (completion). n: requests. rate: per second, in place of the trace's own mean.

    Lengths are lognormal, rounded, and no longer than the longest of the trace. Of all (mu, sigma), these make the largest
    relative error of mean, p50 and p99 as small as it gets. What 200,000 generated lengths give, and how far that is off:

                         mean            p50             p99
        conv prompt   1,195  +3.4 %    991  -2.8 %   4,094  -1.2 %
        conv output     184 -12.7 %    149 +15.5 %     687 +14.3 %
        code prompt   2,046  -0.1 %  1,470  +0.1 %   7,437   0.0 %
        code output    28.6  +2.6 %     13   0.0 %     246  -2.0 %

    The conv outputs are not lognormal (they crowd at 100 and at 400), so all three are off there. Prompt and output are
    drawn independently, which the traces' are not. Gaps are gamma with the traces' mean and cv, independent of each other.
    """
    if kind not in AZURE:
        raise BadTrace(f"no Azure trace is called {kind!r}; there are {' and '.join(AZURE)}")
    prompt, output, own_rate, cv = AZURE[kind]
    rng = Random(seed)
    prompts = [lognormal(rng, *prompt) for _ in range(n)]
    outputs = [lognormal(rng, *output) for _ in range(n)]
    return _requests(prompts, outputs, gamma(n, rate or own_rate, cv, rng))


# Real traces.

MOST_YEARS = 100  # from first request to last: an int64 of nanoseconds holds 292, and a run goes on after the last arrival
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII)
FOLDER = Path(__file__).resolve().parents[2] / "data"
WHERE = (
    "real traces are not part of the course: get AzureLLMInferenceTrace_conv.csv or _code.csv from the Azure Public "
    "Dataset (github.com/Azure/AzurePublicDataset, CC-BY) and put it into data/ or into the folder that $COURSE_DATA names"
)


def find_trace(name: str) -> tuple[Path | None, str]:
    """Look for a file in $COURSE_DATA, then in data/. Returns (its path, ""), or (None, where one gets it)."""
    folders = [Path(folder) for folder in [os.environ.get("COURSE_DATA", "")] if folder] + [FOLDER]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name, ""
    return None, f"{name} is not in {' or '.join(map(str, folders))}; {WHERE}"


def read_csv(path: str | Path) -> list[Request]:
    """Requests of a CSV trace with the Azure columns TIMESTAMP, ContextTokens, GeneratedTokens; others are ignored.

    Arrivals are exact to the nanosecond, counted from the first request. Raises BadTrace for whatever is not such a file,
    naming the line (numbered from 1).
    """
    collects = gc.isenabled()
    gc.disable()  # nothing here becomes garbage, and looking for it takes as long as reading
    try:
        with open(path, encoding="utf-8-sig", newline="") as file, Progress(f"reading {Path(path).name}") as progress:
            requests = []
            for request in _read_rows(path, file):
                requests.append(request)
                if len(requests) % 10_000 == 0:
                    progress.update(len(requests))
            return requests
    except FileNotFoundError:
        raise BadTrace(f"trace {path} does not exist; {WHERE}") from None
    except IsADirectoryError:
        raise BadTrace(f"trace {path} is a directory; name the CSV file in it") from None
    except UnicodeDecodeError:
        raise BadTrace(f"trace {path} is not text; a CSV file with the columns {', '.join(COLUMNS)} is expected") from None
    except (OSError, csv.Error) as error:
        raise BadTrace(f"trace {path} can't be read: {error}") from None
    finally:
        if collects:
            gc.enable()


def _read_rows(path: str | Path, file: Iterable[str]) -> Iterator[Request]:
    lines = csv.reader(file)
    header = [name.strip() for name in next(lines, [])]
    if not header:
        raise BadTrace(f"trace {path} is empty; its first line has to name the columns {', '.join(COLUMNS)}")
    if "\0" in "".join(header):
        raise BadTrace(f"trace {path} is not text; a CSV file with the columns {', '.join(COLUMNS)} is expected")
    for name in COLUMNS:
        if name not in header:
            found = ", ".join(header) if len(header) < 12 else f"{', '.join(header[:12])} …"
            raise BadTrace(f"trace {path} has no column {name}; it has {found[:200]}")
    at_stamp, at_prompt, at_output = map(header.index, COLUMNS)
    first_ns = last_ns = None
    last_stamp, n = "", 0
    for row in lines:
        if not row:
            continue  # a blank line, as many editors leave at the end
        if len(row) < len(header):
            raise _bad_row(path, lines.line_num, row, f"{len(row)} fields where the header has {len(header)}")
        try:
            stamp = row[at_stamp].strip()
            prompt, output = _tokens("ContextTokens", row[at_prompt]), _tokens("GeneratedTokens", row[at_output])
            now_ns = _nanoseconds(stamp)
        except ValueError as error:
            raise _bad_row(path, lines.line_num, row, str(error)) from None
        if last_ns is not None and now_ns < last_ns:
            raise BadTrace(
                f"trace {path}, line {lines.line_num}: {stamp} comes after {last_stamp}; sort the file by TIMESTAMP"
            )
        first_ns = now_ns if first_ns is None else first_ns
        if now_ns - first_ns > MOST_YEARS * 366 * 86_400 * 1_000_000_000:
            raise BadTrace(
                f"trace {path}, line {lines.line_num}: {stamp} comes more than {MOST_YEARS} years after the first request"
            )
        last_ns, last_stamp = now_ns, stamp
        yield Request(f"r{n}", range(prompt), output, now_ns - first_ns, output=Count())
        n += 1
    if n == 0:
        raise BadTrace(f"trace {path} has a header and no requests below it")


def _bad_row(path: str | Path, line: int, row: list[str], why: str) -> BadTrace:
    content = ",".join(row)
    return BadTrace(f"trace {path}, line {line}: {why}: {content[:120]!r}{' …' if len(content) > 120 else ''}")


def _tokens(name: str, text: str) -> int:
    match = re.fullmatch(r"\s*0*(\d*)\s*", text, re.ASCII)
    if match is None or not match[1]:
        raise ValueError(f"{name} is {text.strip()[:40]!r}, it must be a whole number of at least 1")
    if len(match[1]) > 10 or int(match[1]) > MOST_TOKENS:
        raise ValueError(f"{name} is {text.strip()[:40]!r}, it must be at most {MOST_TOKENS:,}")
    return int(match[1])


def _nanoseconds(stamp: str) -> int:
    """Nanoseconds since year 1. In whole numbers: a float of seconds is good to some 100 ns only."""
    match = STAMP.fullmatch(stamp)
    if match is None:
        raise ValueError(f"TIMESTAMP is {stamp[:40]!r}, not like 2023-11-16 18:17:03.9799600")
    try:
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        since = datetime(year, month, day, hour, minute, second) - datetime.min
    except ValueError:
        raise ValueError(f"TIMESTAMP is {stamp!r}, which no calendar or clock shows") from None
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int((match[7] or "").ljust(9, "0"))

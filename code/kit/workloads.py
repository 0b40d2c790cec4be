"""Workload files: the field cases' format read strictly, so that a misspelt key is a sentence and not another result."""

from __future__ import annotations

import difflib
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kit.errors import BadTrace
from kit.request import MOST_ID, MOST_TOKENS, Request

EOS = -1  # a token that no fake model makes by itself
REQUEST_KEYS = ("id", "arrival", "prompt_len", "prompt", "max_tokens", "priority", "eos_at", "stop_token_ids")
LATEST = 10**15  # step of an arrival: eleven days, if it is in nanoseconds
MOMENTS = ("before", "mid")  # of a step at which an abort comes: before it, or between schedule and update
KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def read_workloads(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, workload) of each case of a file and each of its variants. BadTrace if it isn't a file of workloads."""
    return ((name, workload) for _, name, workload in placed_workloads(path))


def placed_workloads(path: str | Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(where it stands in the file, name, workload): read_workloads, for those who have to say which line is wrong."""
    for place, case in _entries(path):
        name = f"{path}, {place}"
        case_id = str(typed(name, case, dict).get("id") or case.get("name") or place)
        _named_lesson(name, case)
        yield place, case_id, case
        for variant in typed(f"{name}: variants", case.get("variants", []), list):
            _named_lesson(name, typed(f"{name}: a variant", variant, dict))
            config = dict(typed(f"{name}: config", case.get("config", {}), dict))
            config.update(typed(f"{name}: config_change", variant.get("config_change", {}), dict))
            name = f"{case_id}/{variant.get('name')}"
            yield place, name, {**case, **({"config": config} if config else {}), **variant}


def _entries(path: str | Path) -> list[tuple[str, Any]]:
    """(where it stands, JSON value) of each case of a file."""
    try:
        data = Path(path).read_bytes()
        text = (_unpacked(path, data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise BadTrace(f"workload file {path} does not exist") from None
    except IsADirectoryError:
        raise BadTrace(f"workload file {path} is a directory; name a file in it") from None
    except UnicodeDecodeError:
        raise BadTrace(f"workload file {path} is not text; JSON or JSONL is expected, perhaps gzipped") from None
    except (OSError, zlib.error) as error:
        raise BadTrace(f"workload file {path} can't be read: {error}") from None
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise BadTrace(f"workload file {path} is empty")
    try:
        value = json.loads(text, object_pairs_hook=no_key_twice)
    except RecursionError:
        raise BadTrace(f"workload file {path} is nested too deeply to be one") from None
    except BadTrace as error:
        if len(lines) == 1 or not _is_json(lines[0][1]):
            raise BadTrace(f"workload file {path}: {error}") from None
        return [(f"line {n}", _line(path, n, line)) for n, line in lines]
    except ValueError as error:
        if not str(error).startswith("Extra data") or not _is_json(lines[0][1]):
            raise BadTrace(f"workload file {path} is not JSON: {error}") from None
        return [(f"line {n}", _line(path, n, line)) for n, line in lines]
    if len(lines) == 1 and ".jsonl" in Path(path).name:
        return [(f"line {lines[0][0]}", value)]
    cases = value.get("cases", value) if isinstance(value, dict) else value
    if not isinstance(cases, list):
        return [(Path(path).stem, cases)]
    return [(f"item {n}", case) for n, case in enumerate(cases, 1)]


def _unpacked(path: str | Path, data: bytes) -> bytes:
    """What was gzipped. BadTrace with the line at which it breaks off, if the file is not whole."""
    try:
        return gzip.decompress(data)
    except EOFError:
        line = zlib.decompressobj(wbits=31).decompress(data).count(b"\n") + 1
        raise BadTrace(
            f"workload file {path} can't be read: it breaks off in line {line}, so it was not copied whole"
        ) from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _line(path: str | Path, n: int, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=no_key_twice)
    except BadTrace as error:
        raise BadTrace(f"workload file {path}, line {n}: {error}") from None
    except json.JSONDecodeError as error:
        raise BadTrace(f"workload file {path}, line {n} is not JSON: {error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError) as error:  # nested too deeply, a number of thousands of digits
        raise BadTrace(f"workload file {path}, line {n} can't be read: {error}") from None


def no_key_twice(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object (json's object_pairs_hook); BadTrace if a key stands in it twice, where json takes the last."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadTrace(f"the key {twice!r} stands twice in one object: leave one of them out")
    return made


def _named_lesson(where: str, workload: dict[str, Any]) -> None:
    needs = workload.get("scheduler", "s10")
    if not isinstance(needs, str) or not re.fullmatch(r"s\d\d", needs):
        raise BadTrace(f"{where}: scheduler is {needs!r}; it must be a lesson like 's10'")


def typed(what: str, value: Any, kind: type) -> Any:
    """`value`, if JSON gave it that type; else BadTrace says what it is."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadTrace(f"{what} is {'missing' if value is None else repr(value)[:60]}; it must be {KINDS[kind]}")
    return value


def whole(what: str, value: Any, least: int, most: int | None = None) -> int:
    """`value`, if it is a whole number of at least `least` and at most `most`."""
    if typed(what, value, int) < least:
        raise BadTrace(f"{what} is {value}; it must be at least {least}")
    if most is not None and value > most:
        raise BadTrace(f"{what} is {value}; it must be at most {most:,}")
    return value


def _only(what: str, entry: Any, keys: Sequence[str]) -> dict[str, Any]:
    for key in typed(what, entry, dict):
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            raise BadTrace(
                f"{what}: unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(keys)}")
            )
    return entry


def parse_request(entry: Any, position: int) -> tuple[Request, int]:
    """A request of a workload, and the output on which it samples EOS (0: never)."""
    what = (
        f"request {_shown(entry['id'])}" if isinstance(entry, dict) and "id" in entry else f"request number {position + 1}"
    )
    entry = _only(what, entry, REQUEST_KEYS)
    prompt: list[int] | range
    if ("prompt" in entry) == ("prompt_len" in entry):
        raise BadTrace(f"{what}: give it either prompt or prompt_len")
    if "prompt" in entry:
        tokens = typed(f"{what}: prompt", entry["prompt"], list)
        prompt = [whole(f"{what}: a token of its prompt", token, 0, MOST_ID) for token in tokens]
    else:  # invented tokens: no two requests share any
        start = position * MOST_TOKENS
        prompt = range(start, start + whole(f"{what}: prompt_len", entry["prompt_len"], 0, MOST_TOKENS))
    stops = typed(f"{what}: stop_token_ids", entry.get("stop_token_ids", []), list)
    priority = entry.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, (int, float)) or priority != priority:
        raise BadTrace(f"{what}: priority is {priority!r}; it must be a number")
    if abs(priority) > MOST_TOKENS:  # beyond what a float holds, at some point
        raise BadTrace(f"{what}: priority is {str(priority)[:40]}; it must be between -{MOST_TOKENS:,} and {MOST_TOKENS:,}")
    request = Request(
        typed(f"{what}: id", entry.get("id"), str),
        prompt,
        whole(f"{what}: max_tokens", entry.get("max_tokens"), 1, MOST_TOKENS),
        whole(f"{what}: arrival", entry.get("arrival", 0), 0, LATEST),
        priority,
        frozenset([EOS, *(whole(f"{what}: a stop token id", token, 0, MOST_ID) for token in stops)]),
    )
    eos_at = entry.get("eos_at")
    return request, 0 if eos_at is None else whole(f"{what}: eos_at", eos_at, 0)


def _shown(name: Any) -> str:
    """An id in a sentence, which is one line."""
    return str(name).encode("unicode_escape").decode() if not str(name).isprintable() else str(name)


def parse_abort(entry: Any) -> tuple[str, int, str]:
    """(id, step, moment of the step) of an abort."""
    entry = _only("an abort", entry, ("id", "step", "when"))
    when = entry.get("when", MOMENTS[0])
    if when not in MOMENTS:
        raise BadTrace(f"an abort's `when` is {when!r}; it must be {' or '.join(map(repr, MOMENTS))}")
    return typed("an abort's id", entry.get("id"), str), whole("an abort's step", entry.get("step"), 0), when

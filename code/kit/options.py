"""The command line of a lesson: its options, its exit codes, its JSON output, its progress line."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kit import exercise
from kit.config import POLICIES, Config, above_zero, positive
from kit.errors import CourseError
from kit.replay import translate
from kit.report import dump_json, no_nan
from kit.workloads import no_key_twice

MYSTERIES = ("A", "B", "C")
MODELS = ("tiny",)
STORIES = ("s01", "s02", "s06")  # lessons that tell stories, and read no trace
KERNELS = ("s17", "s18")  # lessons on kernels: no trace either
ABOUT = {
    "s01_decode_loop": "The decode loop: from scores to a token, again and again, until a story is told.",
    "s02_kv_cache": "The KV cache: the same story, each token computed once.",
    "s03_step_cost": "The price of a step: roofline, a published profile, its knee and its stairs.",
    "s04_kv_memory": "KV memory in contiguous pieces: reservations, first fit, and what fragmentation leaves.",
    "s05_paged_blocks": "Paged blocks: a pool of equal KV blocks, and a table from position to place.",
    "s06_paged_attention": "Paged attention: keys and values in blocks, a mixed batch in one pass, the model behind the engine.",
    "s07_prefix_cache": "The prefix cache: blocks that are shared, remembered, and evicted in order.",
    "s08_static_batching": "Static batching: a batch is closed until its last member is done.",
    "s09_continuous_batching": "Continuous batching: who is in the batch is decided at every step.",
    "s10_scheduler": "The scheduler: a token budget, KV memory, preemption; four incidents and their cures.",
    "s11_chunked_prefill": "Chunked prefill: a prompt in pieces that fill what the decodes leave of each step.",
    "s12_preemption": "Preemption: recompute or swap, whom to evict, where they wait, what thrash costs.",
    "s13_fairness": "Fairness: seats, aging, shares between tenants, admission modes, and answers in time.",
    "s14_unified_scheduler": "The unified scheduler: one rule, and every decision of vLLM's own, replayed and explained.",
    "s17_triton_decode": "Decode attention in Triton: tile by tile through the block table, what it reads, what it must move.",
    "s18_triton_prefill": "Prefill and decode in one Triton kernel: which program computes what, and TinyLM behind the engine.",
}


class _Parser(argparse.ArgumentParser):
    """argparse, but what is wrong is said in one sentence."""

    def error(self, message: str) -> NoReturn:
        sentence = message.partition(": ")[2] if message.startswith("argument ") else message
        for end, says in (("expected one argument", "needs a value"), ("ignored explicit argument", "takes no value")):
            if sentence.startswith(end):
                sentence = f"{message.split()[1].rstrip(':')} {says}"
        stop = "" if sentence.endswith("?") else "."
        self.exit(2, f"{sentence}{stop} `--help` lists the options.\n")


def parse(lesson: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a lesson ("s10_scheduler"). Whatever is wrong with them ends the program: one sentence, exit code 2.

    Always there: json, solutions. In s01 and s02: prompt, temperature, top_k, top_p, seed, max_tokens, stop, and `own`,
    whether one of them was given. In s06: prompt, max_tokens, block_size; in s17: tokens, block_size; in s18: prompt,
    max_tokens, budget. In all others: trace. From s08 to s14: config (a dict, empty without a file), model. From s10 to s14 also:
    budget, blocks, policy, replay, up to s12 mystery; in s13 ttft_target, tpot_target, in ms; in s14: diff, explain, request
    (a list), steps (first, last). What a lesson does not offer is None. Says on stderr which exercises are the learner's and
    which are borrowed.
    """
    _prepare_streams()
    parser = _Parser(prog=f"{lesson}.py", description=ABOUT.get(lesson), allow_abbrev=False)
    add = parser.add_argument
    text = lesson < "s03"  # a lesson that tells a story, and serves nobody
    serving = lesson >= "s08" and lesson[:3] not in KERNELS
    unset: dict[str, Any] = {}  # what stands for an option that was not given, once it is clear which were
    if text:
        _text_options(parser)
    elif lesson.startswith("s06"):
        add("--prompt", metavar="TEXT", help="tell one story that begins with this")
        add("--max-tokens", metavar="N", type=_count("max-tokens"), help="length of its answer, 200 if unset")
        add("--block-size", metavar="N", type=_count("block-size"), help="tokens in a KV block, 16 if unset")
        unset.update(max_tokens=200, block_size=16)
    if lesson.startswith("s17"):
        add(
            "--tokens", metavar="N", type=_count("tokens"), default=150, help="length of the request that is walked through"
        )
        add("--block-size", metavar="N", type=_count("block-size"), default=16, help="tokens in a KV block")
    if lesson.startswith("s18"):
        add("--prompt", metavar="TEXT", help="tell one story that begins with this")
        add("--max-tokens", metavar="N", type=_count("max-tokens"), default=8, help="length of its answer")
        add(
            "--budget", metavar="N", type=_count("budget"), default=8, help="token budget of a step: longer prompts are cut"
        )
    if lesson[:3] not in (*STORIES, *KERNELS):
        add(
            "--trace",
            metavar="FILE",
            type=_file("trace"),
            help="run a CSV trace: TIMESTAMP, ContextTokens, GeneratedTokens",
        )
    if serving:
        add(
            "--config",
            metavar="FILE",
            type=_file("config", _json_object),
            default={},
            help="more settings, a JSON object with the keys of kit.config",
        )
    if lesson >= "s10" and serving:
        add("--budget", metavar="N", type=_count("budget"), help="token budget of a step")
        add("--blocks", metavar="N", type=_count("blocks"), help="KV blocks in the pool")
        policies = POLICIES if lesson < "s14" else ("fcfs", "priority")  # vLLM's
        add("--policy", metavar="P", type=_one_of("policy", policies), help=f"who is next: {', '.join(policies)}")
        add("--replay", metavar="FILE", type=_file("replay"), help="run a file of workloads, print JSON lines")
    if lesson.startswith("s13"):
        for name, default in (("ttft", 500.0), ("tpot", 50.0)):
            says = f"target of goodput in milliseconds, {default:g} if unset"
            add(f"--{name}-target", metavar="MS", type=_above_zero(f"{name}-target"), help=says)
            unset[f"{name}_target"] = default
    elif "s10" <= lesson < "s13":
        add(
            "--mystery",
            metavar="A|B|C",
            type=_one_of("mystery", MYSTERIES, str.upper),
            help="run a scheduler with a hidden fault",
        )
    if lesson >= "s14" and serving:
        add("--diff", action="store_true", help="with --replay: compare with the decisions in the file")
        add("--explain", action="store_true", help="with --replay: say in words what happened, and why")
        only = "with --explain: this request only; may be repeated"
        add("--request", metavar="ID", action="append", default=[], help=only)
        add("--steps", metavar="A-B", type=_span, help="with --explain: these steps only, both included")
    if serving:
        add(
            "--model",
            metavar="tiny",
            type=_one_of("model", MODELS),
            help="tell real stories, with s06's model; needs NumPy",
        )
    add("--json", metavar="FILE", type=_file("json", writable), help="write the numbers to a file as well")
    add("--solutions", action="store_true", help="run the course's answers in place of your code")
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], known, 1)
        parser.error(f"unknown option {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
    if text:
        args.own = any(getattr(args, name) != parser.get_default(name) for name in TEXT_OPTIONS)
    for name in ("trace", "model", "budget", "blocks", "policy", "mystery", "replay"):
        vars(args).setdefault(name, None)
    vars(args).setdefault("config", {})
    args.lesson = lesson
    if args.replay is not None:
        for name in ("trace", "json", "budget", "blocks", "policy", "config", "mystery", "ttft_target", "tpot_target"):
            if getattr(args, name, None) not in (None, {}):
                option = name.replace("_", "-")
                parser.error(f"--replay takes all from its file and prints its results on stdout: leave out --{option}")
    if args.trace is not None and args.mystery is not None:
        parser.error("--mystery runs a load of its own: leave out --trace")
    needs = {"diff": "replay", "explain": "replay", "request": "explain", "steps": "explain"}  # s14's
    for name, other in needs.items():
        if getattr(args, name, None) and not getattr(args, other):
            parser.error(f"--{name} goes with --{other}: add it")
    if args.model is not None:
        for name in ("trace", "mystery", "replay", "ttft_target", "tpot_target"):
            if getattr(args, name, None) is not None:
                parser.error(f"--model tells stories of its own: leave out --{name.replace('_', '-')}")
    if lesson.startswith("s06") and args.prompt is None:
        for name in ("max_tokens", "block_size"):
            if getattr(args, name) is not None:
                parser.error(f"--{name.replace('_', '-')} goes with --prompt: add it")
    for name, value in unset.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.config:
        try:
            args.config = translate(args.config, lesson[:3])
            Config.from_dict({**args.config, "allow_small_budget": True})  # each value by itself: more options may follow
        except CourseError as error:
            parser.error(f"--config: {error}")
        if lesson < "s10" and (extra := [key for key in args.config if key != "max_num_seqs"]):
            parser.error(f"--config: {lesson[:3]} knows no {extra[0]}, only max_num_seqs: leave it out, or use s10")
    if line := exercise.summary(lesson):
        print(line, file=sys.stderr)
    return args


TEXT_OPTIONS = ("prompt", "temperature", "top_k", "top_p", "seed", "max_tokens", "stop")


def _text_options(parser: argparse.ArgumentParser) -> None:
    """What s01 and s02 let one choose about a story. The values are checked where they are used."""
    add = parser.add_argument
    add("--prompt", metavar="TEXT", help="begin the story with this")
    add("--temperature", metavar="T", type=_number("temperature"), default=0.0, help="0 is greedy")
    add("--top-k", metavar="K", type=_count("top-k"), default=0, help="draw from the K most probable tokens only")
    add("--top-p", metavar="P", type=_number("top-p"), default=1.0, help="draw from the fewest tokens that have P together")
    add("--seed", metavar="N", type=_whole("seed"), default=0, help="of the random numbers")
    add("--max-tokens", metavar="N", type=_count("max-tokens"), default=200, help="length of the answer")
    add("--stop", metavar="TEXT", action="append", default=[], help="end before this text; may be repeated")


def _number(option: str) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{option} is {text!r}; it must be a number") from None

    return number


def _whole(option: str) -> Callable[[str], int]:
    def whole(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{option} is {text!r}; it must be a whole number") from None

    return whole


def config_from(args: argparse.Namespace, **defaults: Any) -> Config:
    """A Config from `defaults`, overruled by --config, overruled by --budget, --blocks and --policy.

    A default max_num_seqs gives way to a smaller token budget; one that the user set does not.
    """
    flags = {"max_num_batched_tokens": args.budget, "num_blocks": args.blocks, "policy": args.policy}
    merged = {**defaults, **args.config, **{key: value for key, value in flags.items() if value is not None}}
    if "max_num_seqs" in defaults and "max_num_seqs" not in args.config:
        merged["max_num_seqs"] = min(defaults["max_num_seqs"], merged.get("max_num_batched_tokens", math.inf))
    return Config.from_dict(merged)


def run(script: Callable[[], int | None]) -> int:
    """Run a script and return its exit code: 2 with one sentence for a CourseError, 130 after Ctrl-C, never a traceback."""
    _prepare_streams()
    try:
        code = script() or 0
        sys.stdout.flush()
        return code
    except (CourseError, exercise.NotWritten) as error:  # NotWritten: an exercise under a name that solutions/ doesn't know
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        _close_stdout()
        return 141
    except MemoryError:
        print("this needs more memory than there is: fewer or smaller blocks will do", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a file that went away
        print(f"the run ended early: {error}", file=sys.stderr)
        _close_stdout()
        return 2


def _prepare_streams() -> None:
    """Make print safe: a console that lacks a letter shows `?`, and what goes to a closed stream (`>&-`) goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(getattr(sys, name), "reconfigure"):  # a notebook's has none
            getattr(sys, name).reconfigure(errors="replace")


def _close_stdout() -> None:
    """Send what is still buffered nowhere, or Python complains once more when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_out(args: argparse.Namespace, data: Any) -> None:
    """Write `data` to the file of --json, if there is one. NaN becomes null."""
    if args.json is not None:
        try:
            with open(args.json, "w", encoding="utf-8") as file:
                dump_json(no_nan(data), file)
        except OSError as error:
            raise CourseError(f"can't write {args.json}: {error.strerror}") from None


class Progress:
    """How far a long run is, on one line of stderr, if that is a terminal: `with Progress("trace", total) as progress:`.

    total: None where nobody knows it.
    """

    def __init__(self, what: str, total: int | None = None):
        self.what = what
        self.of = "" if total is None else f" of {total:,}"
        self.shown = sys.stderr is not None and sys.stderr.isatty()
        self._next = 0.0

    def update(self, done: int) -> None:
        """Say that `done` of the total are done. Cheap, but no call for every step: every thousandth is plenty."""
        if self.shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            print(f"\r{self.what}: {done:,}{self.of}\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# What an option's value must be. argparse asks for ArgumentTypeError and puts the sentence where it belongs.


def _count(option: str) -> Callable[[str], int]:
    def count(text: str) -> int:
        try:
            return positive(option, int(text))
        except CourseError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        except ValueError:
            raise argparse.ArgumentTypeError(f"{option} is {text!r}; it must be a whole number") from None

    return count


def _above_zero(option: str) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            return above_zero(option, float(text))
        except CourseError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        except ValueError:
            raise argparse.ArgumentTypeError(f"{option} is {text!r}; it must be a number above 0") from None

    return number


def _span(text: str) -> tuple[int, int]:
    """`12-20`, or one step alone."""
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)) or (dash and int(last) < int(first)):
        raise argparse.ArgumentTypeError(f"steps is {text!r}; it must be a step or a range of steps, like 12-20")
    return int(first), int(last or first)


def _file(option: str, adapt: Callable[[str], Any] = str) -> Callable[[str], Any]:
    def file(text: str) -> Any:
        if not text:
            raise argparse.ArgumentTypeError(f"--{option} is ''; it must be the name of a file")
        return adapt(text)

    return file


def _one_of(option: str, choices: Sequence[str], adapt: Callable[[str], str] = str) -> Callable[[str], str]:
    def choice(text: str) -> str:
        if adapt(text) not in choices:
            raise argparse.ArgumentTypeError(f"{option} {text!r} is unknown; choose {', '.join(choices)}")
        return adapt(text)

    return choice


def _json_object(path: str) -> dict[str, Any]:
    try:
        value = json.loads(Path(path).read_text("utf-8-sig"), object_pairs_hook=no_key_twice)
    except CourseError as error:
        raise argparse.ArgumentTypeError(f"config file {path}: {error}") from None
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(
            f"config file {path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"config file {path} is not text; a JSON object is expected") from None
    except (OSError, RecursionError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"config file {path} can't be read: {why}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'config file {path} holds no JSON object like {{"max_num_seqs": 8}}')
    return value


def writable(path: str) -> str:
    """Checked before a long run, without touching the file."""
    file = Path(path)
    folder = file.parent
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"output {path} is a directory; name a file")
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"output {path} can't be written: there is no folder {folder}")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"output {path} can't be written: no permission")
    return path

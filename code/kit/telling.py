"""What s01 and s02 show when they run: a story, and what it costs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from kit import options
from kit.report import heading, table
from kit.tinylm import TinyLM, np

PROMPT = "Once upon a time"
WIDTH = 100  # columns of a story on the screen


class Teller:
    """Prints a text as its pieces arrive, broken into lines between words. A piece is on the screen before the next is made."""

    def __init__(self, indent: str = "  ", width: int = WIDTH):
        self.indent, self.width, self.column, self.word = indent, width, 0, ""

    def __call__(self, piece: str) -> None:
        for letter in piece:
            if letter == " ":
                self._put()
            self.word += letter
        sys.stdout.flush()

    def end(self) -> None:
        self._put()
        print(flush=True)

    def _put(self) -> None:
        """Print the word that is complete, on a new line if it doesn't fit any more."""
        if self.column and self.column + len(self.word) > self.width:
            self.word, self.column = self.word.lstrip(" "), 0
            print()
        if not self.column:
            sys.stdout.write(self.indent)
        sys.stdout.write(self.word)
        self.column += len(self.word)
        self.word = ""


def told(complete: Callable, model: TinyLM, prompt: str, **settings: Any) -> Any:
    """Stream one story to the screen, its prompt first; returns the Completion."""
    tell, pending = Teller(), [prompt]  # the prompt is shown with the first piece: what is wrong with it is said before

    def show(piece: str) -> None:
        tell(pending.pop() + piece if pending else piece)

    answer = complete(model, prompt, show=show, **settings)
    show("")
    tell.end()
    return answer


def ended(answer: Any) -> str:
    """Why an answer ended, in words."""
    if answer.finish_reason == "length":
        return "max_tokens is reached"
    return "the model says that the story is over" if answer.stop is None else f"the stop string {answer.stop!r} was there"


def own_story(args: argparse.Namespace, complete: Callable, sampling_of: Callable, model: TinyLM) -> int:
    """One story with the user's own prompt and settings."""
    sampling = sampling_of(args.temperature, args.top_k, args.top_p)
    settings = {"max_tokens": args.max_tokens, "sampling": sampling, "seed": args.seed, "stops": args.stop}
    answer = told(complete, model, PROMPT if args.prompt is None else args.prompt, **settings)
    count = len(answer.tokens)
    print(f"\n{count} token{'s' * (count > 1)}; {ended(answer)}")
    options.json_out(args, {"text": answer.text, "tokens": answer.tokens, "finish_reason": answer.finish_reason})
    return 0


# s01 ----------------------------------------------------------------------------------------------------------------


class Counting:
    """A model that counts what it is asked to compute: `calls`, and `tokens` over all of them."""

    def __init__(self, model: TinyLM):
        self.model, self.calls, self.tokens = model, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def logits(self, tokens: Sequence[int]) -> Any:
        self.calls += 1
        self.tokens += len(tokens)
        return self.model.logits(tokens)

    def forward(self, tokens: Sequence[int], *args: Any, **settings: Any) -> Any:
        self.calls += 1
        self.tokens += len(tokens)
        return self.model.forward(tokens, *args, **settings)


def decode_loop(
    argv: Sequence[str] | None, complete: Callable, sampling_of: Callable, watch: Any, softmax: Callable,
    keep_top: Callable, work: Callable,
) -> int:  # fmt: skip
    """The main job of s01."""

    def script() -> int:
        args = options.parse("s01_decode_loop", argv)
        model = TinyLM.load()
        if args.own:
            return own_story(args, complete, sampling_of, model)
        return _decode_loop(args, model, complete, sampling_of, watch, softmax, keep_top, work)

    return options.run(script)


def _decode_loop(
    args: argparse.Namespace, model: TinyLM, complete: Callable, sampling_of: Callable, watch: Any, softmax: Callable,
    keep_top: Callable, work: Callable,
) -> int:  # fmt: skip
    heading("1. A story, token by token")
    counting = Counting(model)
    story = told(complete, counting, PROMPT)  # type: ignore[arg-type]
    prompt = len(model.encode(PROMPT))
    print(f"\n{len(story.tokens)} tokens after a prompt of {prompt}; {ended(story)}.")

    heading("2. Scores become a token")
    start = f"{PROMPT} there was a"
    logits = model.logits(model.encode(start))[-1]
    print(f"What may follow {start!r}, in percent:\n")
    settings = [(0.5, 0, 1.0), (1.0, 0, 1.0), (2.0, 0, 1.0), (1.0, 3, 1.0), (1.0, 0, 0.7)]
    columns = [keep_top(softmax(logits / t), k, p) for t, k, p in settings]
    best = np.argsort(-columns[1], kind="stable")[:8]
    names = [f"T {t:g}" + (f", top-k {k}" if k else "") + (f", top-p {p:g}" if p < 1 else "") for t, k, p in settings]
    rows = [(repr(model.tokenizer.text_of(i)), *(f"{100 * column[i]:.1f}" for column in columns)) for i in best]
    rest = ("all others", *(f"{100 * (1 - column[best].sum()) + 0.0:.1f}" for column in columns))
    print(table(("token", *names), [*rows, tuple(cell.replace("-0.0", "0.0") for cell in rest)]))

    heading("3. The same prompt, drawn four times")
    for temperature, seed in ((0.0, 1), (0.8, 1), (0.8, 2), (2.5, 1)):
        drawn = complete(model, PROMPT, max_tokens=20, sampling=sampling_of(temperature), seed=seed)
        print(f"  T {temperature:g}, seed {seed}:{drawn.text}")
    print("\n  Again T 0.8, seed 1:" + complete(model, PROMPT, max_tokens=20, sampling=sampling_of(0.8), seed=1).text)

    heading("4. What may be shown, and when")
    for stops, pieces in ((["DE"], ["DEF"]), (["DEFGHIJ"], ["DEF", "G", "HI", "J"]), (["DEFGHIJ"], ["DEF", "X"])):
        print(f"stop string {stops[0]!r}")
        looking, rows = watch(stops), []
        for piece in pieces:
            shown = looking.feed(piece)
            rows.append((repr(piece), repr(shown), repr(looking.held), "stop" if looking.stopped else ""))
        print(table(("token", "shown", "held back", ""), rows) + "\n")
    print("The story again, with the stop string ' who lived'; a dot where a token came and nothing was shown:\n")
    _show_holding(model, story.tokens, watch([" who lived"]))

    heading("5. What it costs")
    new = len(story.tokens)
    print(f"The story: {counting.calls} calls of the model, {counting.tokens:,} tokens computed for {new} new ones.")
    print(f"work_without_cache({prompt}, {new}) = {work(prompt, new):,}\n")
    costs: list[tuple[Any, ...]] = []
    for n in (50, 100, 200, 400, 800):
        pairs = sum(size * (size + 1) // 2 for size in range(prompt, prompt + n))
        costs.append((n, work(prompt, n), prompt + n - 1, f"{work(prompt, n) / (prompt + n - 1):.0f}x", pairs))
    print(table(("new tokens", "computed", "if each only once", "ratio", "query-key pairs"), costs))
    options.json_out(args, {"story": story.text, "calls": counting.calls, "computed": counting.tokens, "new": new})
    return 0


def _show_holding(model: TinyLM, tokens: Sequence[int], looking: Any) -> None:
    tell = Teller()
    for token in tokens:
        shown = looking.feed(model.tokenizer.text_of(token))
        tell(f"{shown}|" if shown else "·")
        if looking.stopped:
            break
    tell.end()


# s02 ----------------------------------------------------------------------------------------------------------------

# Layers, key/value heads, size of a head, and query heads, as in the models' config.json.
MODELS = {
    "Llama-2-7B": (32, 32, 128, 32),
    "Llama-2-13B": (40, 40, 128, 40),
    "Llama-3-8B": (32, 8, 128, 32),
    "Llama-3-70B": (80, 8, 128, 64),
    "Qwen3-0.6B": (28, 8, 128, 16),
}


class KVLesson(NamedTuple):
    """The pieces of s02 that it shows."""

    cache: Callable
    compute: Callable
    generate: Callable
    slots_needed: Callable
    bytes_per_token: Callable
    sampling: Callable
    sample: Callable


def kv_cache(argv: Sequence[str] | None, lesson: KVLesson, complete: Callable, work: Callable) -> int:
    """The main job of s02."""

    def with_cache(model: TinyLM, prompt: str, **settings: Any) -> Any:
        return complete(model, prompt, tokens=lesson.generate, **settings)

    def script() -> int:
        args = options.parse("s02_kv_cache", argv)
        model = TinyLM.load()
        if args.own:
            return own_story(args, with_cache, lesson.sampling, model)
        return _kv_cache(args, model, lesson, with_cache, complete, work)

    return options.run(script)


def _kv_cache(
    args: argparse.Namespace, model: TinyLM, lesson: KVLesson, with_cache: Callable, complete: Callable, work: Callable
) -> int:
    heading("1. The same story, each token computed once")
    fast, slow = Counting(model), Counting(model)
    story = told(with_cache, fast, PROMPT)  # type: ignore[arg-type]
    same = complete(slow, PROMPT).tokens == story.tokens
    print(f"\n{len(story.tokens)} tokens, {'the same as' if same else 'NOT those of'} s01's, in as many passes.")
    print(f"Computed without a cache: {slow.tokens:,} tokens. With it: {fast.tokens:,}.")
    drawn = [
        way(model, PROMPT, max_tokens=40, sampling=lesson.sampling(0.8), seed=7).tokens for way in (complete, with_cache)
    ]
    print(f"Forty more, drawn at temperature 0.8: {'the same' if drawn[0] == drawn[1] else 'NOT the same'}.")

    heading("2. When is a sampled token stored?")
    _trace(model, lesson, model.encode(PROMPT), 4)

    heading("3. What it costs")
    rows = []
    for n in (50, 100, 200, 400, 800):
        length = 5 + n - 1
        pairs = sum(size * (size + 1) // 2 for size in range(5, 5 + n)), length * (length + 1) // 2
        rows.append((n, work(5, n), length, *pairs))
    print("After a prompt of 5 tokens. Pairs: every token looks at itself and all before it.\n")
    print(table(("new tokens", "computed without", "with a cache", "pairs without", "with a cache"), rows))

    heading("4. Three endings for one beginning")
    print(_endings(model, lesson))

    heading("5. How large it is")
    rows2 = []
    for name, (layers, kv_heads, size, heads) in MODELS.items():
        per_token = lesson.bytes_per_token(layers, kv_heads, size)
        rows2.append(
            (name, layers, f"{heads} / {kv_heads}", per_token, f"{4096 * per_token / 1e9:.2f}", int(20e9 // per_token))
        )
    c = model.config
    tiny = lesson.bytes_per_token(c.num_layers, c.num_kv_heads, c.head_dim)
    rows2.append(("TinyLM, float16", c.num_layers, f"{c.num_heads} / {c.num_kv_heads}", tiny, "", int(20e9 // tiny)))
    headers = ("model", "layers", "query / KV heads", "bytes a token", "GB for 4,096 tokens", "tokens in 20 GB")
    print(table(headers, rows2))
    options.json_out(args, {"story": story.text, "computed_without": slow.tokens, "computed_with": fast.tokens})
    return 0


def _trace(model: TinyLM, lesson: KVLesson, prompt: Sequence[int], new: int) -> None:
    """Run the loop by hand with the smallest cache that is enough, and say what is stored after each pass."""
    cache = lesson.cache(model.config, lesson.slots_needed(len(prompt), new))
    feed, rows = list(prompt), []
    for number in range(1, new + 1):
        first = cache.length
        token = lesson.sample(lesson.compute(model, cache, feed), lesson.sampling(), None)
        places = f"{first}" if len(feed) == 1 else f"{first} to {first + len(feed) - 1}"
        fed = "".join(map(model.tokenizer.text_of, feed))
        rows.append((number, repr(fed), places, cache.length, repr(model.tokenizer.text_of(token))))
        feed = [token]
    print(
        f"A prompt of {len(prompt)} tokens (the first marks the beginning and has no text), max_tokens {new}, a cache of {cache.capacity} slots.\n"
    )
    print(table(("pass", "fed and stored", "at slots", "slots used", "sampled, not stored"), rows))
    print(f"\n{new} tokens were made and the cache is full: {rows[-1][-1]} was never stored.")


def _endings(model: TinyLM, lesson: KVLesson) -> str:
    """Continue one beginning three times from one cache, rewinding in between."""
    beginning = [*model.encode(PROMPT), *lesson.generate(model, model.encode(PROMPT), 15)]
    fast = Counting(model)
    cache = lesson.cache(model.config, len(beginning) + 3 * 12)  # room to spare: a rewind that does nothing tells on
    lesson.compute(fast, cache, beginning[:-1])
    lines = [f"The beginning:{model.decode(beginning).removeprefix(PROMPT)}", ""]
    for seed in range(3):
        cache.rewind(len(beginning) - 1)  # its last token is fed again: its scores are what comes next
        rng, feed = Random(seed), beginning[-1:]
        told: list[int] = []
        for _ in range(12):
            told.append(lesson.sample(lesson.compute(fast, cache, feed), lesson.sampling(1.2), rng))
            feed = told[-1:]
        lines.append(f"  seed {seed}: …{model.decode(told)}")
    without = 3 * (len(beginning) - 1 + 12)
    lines += ["", f"{fast.tokens} tokens computed; three caches of their own would have computed {without}."]
    return "\n".join(lines)

"""What s01 and s02 show when they run: a story, and what it costs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kit import options
from kit.report import table
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


def heading(text: str) -> None:
    print(f"\n{text}\n{'=' * len(text)}")


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
    print("The story again, with the stop string ' who lived in'; a dot where a token came and nothing was shown:\n")
    _show_holding(model, story.tokens, watch([" who lived in"]))

    heading("5. What it costs")
    new = len(story.tokens)
    print(f"The story: {counting.calls} calls of the model, {counting.tokens:,} tokens computed for {new} new ones.")
    print(f"work_without_cache({prompt}, {new}) = {work(prompt, new):,}\n")
    rows = []
    for n in (50, 100, 200, 400, 800):
        pairs = sum(size * (size + 1) // 2 for size in range(prompt, prompt + n))
        rows.append((n, work(prompt, n), prompt + n - 1, f"{work(prompt, n) / (prompt + n - 1):.0f}x", pairs))
    print(table(("new tokens", "computed", "if each only once", "ratio", "query-key pairs"), rows))
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

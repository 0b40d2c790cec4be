"""s01: a language model gives a score for every possible next token; a loop around it makes a text.

The shape of the file: `Sampling`, from scores to one token; `generate`, the loop; `StopStrings` and `complete`, where a text
ends and what may be shown of it; `work_without_cache`, what the loop costs. Then `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from kit.errors import BadRequest
from kit.exercise import exercise
from kit.tinylm import Array, TinyLM, np  # np is NumPy; None without it, and then TinyLM.load says what to install


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. temperature 0: always the most probable (greedy). top_k 0 and top_p 1: no cut."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not 0.01 <= self.temperature < float("inf"):
            raise BadRequest(f"temperature is {self.temperature}; it must be 0 (greedy), or 0.01 or more")
        if self.top_k < 0:
            raise BadRequest(f"top_k is {self.top_k}; it must be 1 or more, or 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise BadRequest(f"top_p is {self.top_p}; it must be above 0 and at most 1")


GREEDY = Sampling()


@exercise
def softmax(logits: Array) -> Array:
    """Scores to probabilities: exp(score) over the sum of all exp(scores). Roughly 3 lines.

    logits: [vocab_size] scores of any size and sign, float32. Returns [vocab_size] float64 that sum to 1.

    1. Convert to float64, or small probabilities lose digits.
    2. Subtract the largest score first. It changes no probability, and exp() of a large score would be infinite.
    """
    raise NotImplementedError


@exercise
def keep_top(probabilities: Array, top_k: int, top_p: float) -> Array:
    """Cut off the improbable tail: others get probability 0, those kept are scaled to sum to 1 again. Roughly 10 lines.

    probabilities: [vocab_size] that sum to 1; don't change it. top_k: 0 for no cut. top_p: 1 for no cut.

    1. Order the tokens by falling probability. Of equal ones the lower id comes first, so that the result does not depend
       on a sorting algorithm (`np.argsort(-p, kind="stable")`).
    2. top_k first: keep the first top_k tokens, and scale what is kept to sum to 1.
    3. Then top_p (nucleus sampling; Holtzman et al., 2020): keep the fewest tokens, from the most probable on, that
       together have at least top_p. The token that crosses the line is kept, so at least one always is.
    4. Scale what is kept to sum to 1.
    """
    raise NotImplementedError


@exercise
def sample(logits: Array, sampling: Sampling, rng: Random) -> int:
    """Choose the next token. Roughly 8 lines.

    logits: [vocab_size] scores of the next token. rng: the request's own source of random numbers.

    1. temperature 0: the token with the highest score; of equal ones the lowest id. `rng` is not used.
    2. Else divide the scores by the temperature, take the softmax, then `keep_top`.
    3. Call `rng.random()` once: a number u in [0, 1). Go through the tokens by id and add up their probabilities: the first
       token whose running sum is greater than u is the choice. (Rounding may leave the last sum a hair below u: then it is
       the last token with a probability above 0.)

    One number a token, drawn from a generator that belongs to this request alone: so the text depends on nobody else.
    """
    raise NotImplementedError


@exercise
def generate(
    model: TinyLM, prompt: Sequence[int], max_tokens: int, sampling: Sampling = GREEDY, rng: Random | None = None
) -> Iterator[int]:
    """The decode loop: yield tokens one at a time, as soon as each is known. Roughly 9 lines.

    model: `model.logits(tokens)` gives [len(tokens), vocab_size]: row i holds the scores of the token that follows tokens[i].
    prompt: token ids, at least one; don't change the list. rng: None for `Random(0)`.

    At most max_tokens times: compute the logits of all tokens so far, `sample` from the last row, yield the token, append it.
    End after model.eos_id, which is yielded too: it counts as an output token. The last token is never fed to the model.
    """
    raise NotImplementedError


class StopStrings:
    """Looks for stop strings in a text that arrives in pieces, and says what of it may be shown already.

    stops: texts to stop at. held: text that arrived and may turn out to begin a stop string. stopped: the stop string that
    was found, None so far.
    """

    def __init__(self, stops: Sequence[str] = ()):
        if isinstance(stops, str) or not all(stops):
            raise BadRequest(f"stop is {stops!r}; it must be a list of texts, none of them empty")
        self.stops = tuple(stops)
        self.longest = max(map(len, stops), default=1)
        self.held = ""
        self.stopped: str | None = None

    @exercise
    def feed(self, new: str) -> str:
        """Take the text of the next token; return what may be shown now. Roughly 10 lines.

        1. Look in `held` and the new text together: a stop string may begin inside one token and end inside another.
        2. Is one of the stop strings in there? Set `stopped` to it, empty `held`, and return only what stands before it.
           Of several take the one that is complete first, reading letter by letter; of those that end at the same letter
           the one that comes first in `stops`. So the result does not depend on how the text was cut into tokens.
        3. Else hold back the longest end of the text with which a stop string begins, at most `longest - 1` letters; return
           what stands before it. Text that can't be part of a stop string any more is shown at once.
        """
        raise NotImplementedError

    def rest(self) -> str:
        """What is still held back when the text ends for another reason: nothing completes it, so it is shown."""
        rest, self.held = self.held, ""
        return rest


@dataclass(slots=True)
class Completion:
    """An answer: its token ids, the text that was shown, why it ended ("stop" or "length"), and the stop string if one did."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    stop: str | None = None


def complete(
    model: TinyLM,
    prompt: str,
    max_tokens: int = 200,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    stops: Sequence[str] = (),
    show: Callable[[str], object] = str,
    tokens: Callable[..., Iterator[int]] | None = None,
) -> Completion:
    """Continue a text, and `show` each piece as soon as it is safe to. tokens: another loop in place of `generate`.

    max_tokens is cut so that prompt and answer fit the model. Raises CourseError: an unknown letter, a prompt too long.
    """
    ids, limit = model.encode(prompt), model.config.max_model_len
    if len(ids) >= limit:
        raise BadRequest(f"the prompt has {len(ids)} tokens, the model takes {limit}: nothing is left for an answer")
    if max_tokens < 1:
        raise BadRequest(f"max_tokens is {max_tokens}; it must be 1 or more")
    answer, watch = Completion(), StopStrings(stops)

    def shown(piece: str) -> None:
        answer.text += piece
        if piece:
            show(piece)

    for token in (tokens or generate)(model, ids, min(max_tokens, limit - len(ids)), sampling, Random(seed)):
        answer.tokens.append(token)
        shown(watch.feed(model.tokenizer.text_of(token)))
        if watch.stopped is not None or token == model.eos_id:
            answer.finish_reason, answer.stop = "stop", watch.stopped
            break
    shown(watch.rest())
    return answer


@exercise
def work_without_cache(prompt: int, new: int) -> int:
    """How many tokens the model computes, over all calls of the loop, to make `new` tokens after a prompt. Roughly 1 line.

    prompt, new: numbers of tokens. The call that makes the first new token computes the prompt; each later call computes
    everything again, and one token more than the call before. Write it as a formula: no loop.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    from kit import telling

    return telling.decode_loop(argv, complete, Sampling, StopStrings, softmax, keep_top, work_without_cache)


if __name__ == "__main__":
    raise SystemExit(main())

"""Measure TinyLM as it is exported: how well it tells stories, and how fast. NumPy only.

Speeds are those of one core: OPENBLAS_NUM_THREADS is 1 unless you set it.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "code"))

from kit.tinylm import TinyLM  # isort: skip  # before NumPy: it says how many threads

import numpy as np
import stories

STORY_TOKENS = 192  # room for a story; the grammar's longest has fewer
PROMPTS = (
    "Once upon a time there was a curious fox named Lily who lived by a quiet pond.",
    "Long ago, a gentle bear named Hugo lived behind the mill. Every night Hugo dreamed that he would learn to sing.",
    "There was once a clever mouse named Tess, and her home was near the lighthouse. Tess had one wish: to see the sea. "
    "One windy day, Tess found a silver key",
)


@dataclass
class Told:
    text: str
    tokens: int  # generated ones, the end of the story among them
    ended: bool  # by EOS


def tell(model: TinyLM, prompts: Sequence[str], temperature: float, seed: int = 0, together: int = 50) -> list[Told]:
    """One story for each prompt, greedy at temperature 0; `together` share the model's steps."""
    told = []
    for first in range(0, len(prompts), together):
        told += _tell_together(model, prompts[first : first + together], temperature, np.random.default_rng((seed, first)))
    return told


def _tell_together(model: TinyLM, prompts: Sequence[str], temperature: float, rng: np.random.Generator) -> list[Told]:
    starts = [model.encode(prompt) for prompt in prompts]
    outputs: list[list[int]] = [[] for _ in prompts]
    caches = [model.new_cache(STORY_TOKENS) for _ in prompts]
    alive = list(range(len(prompts)))
    while alive:
        logits = model.step([(caches[i], outputs[i][-1:] or starts[i]) for i in alive])
        if temperature > 0:  # the maximum of logits / temperature + Gumbel noise is a sample of the softmax
            logits = logits / temperature + rng.gumbel(size=logits.shape)
        for i, token in zip(alive, logits.argmax(axis=-1).tolist()):
            outputs[i].append(token)
        alive = [i for i in alive if outputs[i][-1] != model.eos_id and caches[i].length < STORY_TOKENS]
    return [
        Told(model.decode(start + output), len(output), output[-1] == model.eos_id)
        for start, output in zip(starts, outputs)
    ]


def share(verdicts: Iterable[bool]) -> float:
    verdicts = list(verdicts)
    return sum(verdicts) / len(verdicts)


def keeps_hero(told: Iterable[Told]) -> float:
    """The share of stories that use the name of their beginning, and no other, to the end."""
    return share(stories.keeps_its_hero(story.text) for story in told)


def ends_properly(told: Iterable[Told]) -> float:
    """The share of stories that the model itself ends, after one of the grammar's endings."""
    return share(story.ended and stories.ends(story.text) for story in told)


def in_grammar(told: Iterable[Told]) -> float:
    """The share of stories that the grammar could have told word for word: every cause has its effect."""
    return share(bool(stories.derivations(story.text)) for story in told)


@dataclass
class Validation:
    """Nats per token over held-out stories."""

    loss: float  # of the model
    entropy: float  # of the grammar: no model can be better than this in the long run


def validate(model: TinyLM, count: int = 200, seed: str = "held out") -> Validation:
    rng = random.Random(seed)
    nats, least, tokens = 0.0, 0.0, 0
    for _ in range(count):
        story = stories.sample(rng)
        ids = [*model.encode(story.text), model.eos_id]
        logits = model.logits(ids[:-1]).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        log_p = logits[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(logits).sum(axis=-1))
        nats, least, tokens = nats - log_p.sum(), least - story.log_probability, tokens + len(ids) - 1
    return Validation(float(nats) / tokens, least / tokens)


def decode_speed(model: TinyLM, requests: int, steps: int = 120) -> float:
    """Tokens per second of this process's CPU time, while `requests` decode together from an 18-token prompt."""
    batch = [(model.new_cache(160), model.encode(PROMPTS[0])) for _ in range(requests)]
    logits = model.step(batch)
    start = time.process_time()
    for _ in range(steps):
        logits = model.step([(cache, [int(token)]) for (cache, _), token in zip(batch, logits.argmax(axis=-1))])
    return requests * steps / (time.process_time() - start)


def main() -> None:
    start = time.process_time()
    model = TinyLM.load()
    print(f"{model.num_parameters:,} parameters, loaded in {time.process_time() - start:.2f} s of CPU time")
    validation = validate(model)
    print(f"validation loss {validation.loss:.4f} nats/token, entropy of the grammar {validation.entropy:.4f}")
    told = tell(model, [""] * 200, 0.8)
    print(f"200 stories at temperature 0.8: {np.mean([story.tokens for story in told]):.0f} tokens on average")
    print(f"  {keeps_hero(told):6.1%} keep their hero's name")
    print(f"  {ends_properly(told):6.1%} end properly")
    print(f"  {in_grammar(told):6.1%} are stories of the grammar, word for word")
    for requests in (1, 16):
        print(f"{requests:2} decoding together: {decode_speed(model, requests):,.0f} tokens/s of CPU time")
    for story in [*tell(model, PROMPTS, 0), *told[:3]]:
        print(f"\n{story.text}")


if __name__ == "__main__":
    main()

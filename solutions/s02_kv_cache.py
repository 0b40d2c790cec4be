"""s02 adds one idea: keep what the model made of each token, and a call computes only what is new.

The shape of the file: `KVCache`, what is kept; `attend`, attention over it; `compute` and `generate`, the loop of s01 with a
cache; `slots_needed` and `kv_bytes_per_token`, how large it gets. Then `main`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from kit.exercise import exercise
from kit.tinylm import (
    Array,
    CacheOverrun,
    ModelConfig,
    TinyLM,
    np,
)  # np is NumPy; without it TinyLM.load says what to install
from s01_decode_loop import GREEDY, Sampling, complete, sample, work_without_cache


class KVCache:
    """Keys and values of one request, contiguous: room for `capacity` tokens, of which `length` are stored.

    k, v: [num_layers, capacity, num_kv_heads, head_dim]. Token i of the request is at place i of every layer.
    """

    def __init__(self, config: ModelConfig, capacity: int, dtype: Any = "float32"):
        shape = (config.num_layers, capacity, config.num_kv_heads, config.head_dim)
        self.capacity, self.length = capacity, 0
        self.k, self.v = np.zeros(shape, dtype), np.zeros(shape, dtype)

    @exercise
    def append(self, layer: int, k: Array, v: Array) -> None:
        """Store the keys and values that one layer made of n new tokens, behind those of earlier passes. Roughly 5 lines.

        k, v: [n, num_kv_heads, head_dim].

        1. If `length + n` is more than `capacity`, raise CacheOverrun with both numbers, before anything is written.
        2. Write them to the places `length` to `length + n - 1` of this layer.

        Don't move `length`: the pass goes through all layers, and each stores its own k and v of the same tokens at the same
        places. `advance` moves it when the pass is over.
        """
        stop = self.length + len(k)
        if stop > self.capacity:
            raise CacheOverrun(f"{stop} tokens do not fit into a KV cache of {self.capacity}")
        self.k[layer, self.length : stop] = k
        self.v[layer, self.length : stop] = v

    def advance(self, n: int) -> None:
        """A pass over n tokens is over: every layer has stored them."""
        self.length += n

    @exercise
    def rewind(self, length: int) -> None:
        """Forget all tokens but the first `length`. Roughly 3 lines.

        Raises CacheOverrun, with both numbers, unless 0 <= length <= self.length. No number in k and v is touched: what lies
        behind `length` is nobody's, and the next append writes over it.
        """
        if not 0 <= length <= self.length:
            raise CacheOverrun(f"can't rewind to {length} tokens: the KV cache holds {self.length}")
        self.length = length


@exercise
def attend(q: Array, k: Array, v: Array) -> Array:
    """Causal attention of one layer: n new tokens look at all tokens so far, themselves included. Roughly 12 lines.

    q: [n, num_heads, head_dim], the queries of the n last tokens. k, v: [m, num_kv_heads, head_dim], the keys and values of
    all m tokens of the request, the new ones at the end: query i belongs to token m - n + i. Returns [n, num_heads, head_dim].

    For query i and head h:
    1. Head h reads key/value head h // (num_heads // num_kv_heads): neighbouring heads share one (grouped-query attention).
    2. score of token j: the dot product of the query with key j, divided by sqrt(head_dim).
    3. Tokens behind its own, j > m - n + i, are the future: their score is minus infinity.
    4. Softmax over the scores (subtract the largest first), then the sum of the values with these weights.

    Loops are fine; `np.repeat(k, group, axis=1)` and `np.einsum` do it without.
    """
    n, heads, size = q.shape
    m, kv_heads, _ = k.shape
    k, v = np.repeat(k, heads // kv_heads, axis=1), np.repeat(v, heads // kv_heads, axis=1)  # [m, heads, size]
    scores = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(size)
    future = np.arange(m) > np.arange(m - n, m)[:, None]  # [n, m]
    scores = np.where(future, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v)


def compute(model: TinyLM, cache: KVCache, tokens: Sequence[int]) -> Array:
    """One pass over the tokens that follow what is stored. Returns [vocab_size], the scores of what follows the last one.

    The model does everything but attention; for that it calls us, once a layer. Raises CacheOverrun.
    """
    start, stop = cache.length, cache.length + len(tokens)

    def attention(layer: int, q: Array, k: Array, v: Array) -> Array:
        cache.append(layer, k, v)
        return attend(q, cache.k[layer, :stop], cache.v[layer, :stop])

    logits = model.forward(tokens, range(start, stop), attention, rows=[-1])
    cache.advance(len(tokens))
    return logits[0]


@exercise
def slots_needed(prompt: int, max_tokens: int) -> int:
    """The most tokens whose keys and values a request ever has stored. Roughly 1 line.

    prompt: its tokens, at least 1. max_tokens: the most it may make, at least 1. A token is stored when it is fed to the
    model, not when it is sampled; and the last one that is sampled is never fed.
    """
    return prompt + max_tokens - 1


@exercise
def generate(
    model: TinyLM, prompt: Sequence[int], max_tokens: int, sampling: Sampling = GREEDY, rng: Random | None = None
) -> Iterator[int]:
    """The decode loop of s01, token for token, but each token is computed once. Roughly 10 lines.

    1. Make a `KVCache(model.config, capacity, model.dtype)` with room for exactly `slots_needed(…)` tokens.
    2. `compute` the whole prompt in one pass (the prefill). Its scores give the first token.
    3. After that `compute` one token a pass, the one just sampled (a decode). Yield and stop as in s01: at most max_tokens,
       and after model.eos_id, which is yielded too. The last token is not computed.
    """
    rng = rng or Random(0)
    cache = KVCache(model.config, slots_needed(len(prompt), max_tokens), model.dtype)
    new = list(prompt)
    for _ in range(max_tokens):
        token = sample(compute(model, cache, new), sampling, rng)
        yield token
        if token == model.eos_id:
            return
        new = [token]


@exercise
def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_number: int = 2) -> int:
    """Bytes of KV cache that one token takes. Roughly 1 line.

    Every layer keeps a key and a value for each of its key/value heads, each of head_dim numbers. How many query heads share
    them does not matter. bytes_per_number: 2 for float16 and bfloat16.
    """
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_number


def main(argv: list[str] | None = None) -> int:
    from kit import telling

    lesson = telling.KVLesson(KVCache, compute, generate, slots_needed, kv_bytes_per_token, Sampling, sample)
    return telling.kv_cache(argv, lesson, complete, work_without_cache)


if __name__ == "__main__":
    raise SystemExit(main())

"""s02: keep what the model made of each token, and a call computes only what is new."""

from __future__ import annotations

import math
from functools import lru_cache
from random import Random

import numpy as np
import s01_decode_loop
from hypothesis import given
from hypothesis import strategies as st
from kit.tinylm import CacheOverrun, ModelConfig, TinyLM
from s02_kv_cache import (
    KVCache,
    Sampling,
    attend,
    compute,
    generate,
    kv_bytes_per_token,
    slots_needed,
)
from support import expect, mismatch

KEPT = "s02_kv_cache/What may be kept"
LAYER = "s02_kv_cache/Attention over it"
STORED = "s02_kv_cache/When is a sampled token stored?"
BACK = "s02_kv_cache/The way back"
SIZE = "s02_kv_cache/How large it is"
SMALL = ModelConfig(50, 8, 16, 3, 4, 2, 2, 64, 1e-5, 1e4, 1, 0)  # 3 layers, 2 key/value heads of size 2


@lru_cache
def model() -> TinyLM:
    """In float64, where two ways to compute the same logits differ by 1e-13, so that no token hangs on rounding."""
    return TinyLM.load(dtype="float64")


def rows(*first: float):
    """Keys or values of tokens, [n, 2, 2], told apart by their first number."""
    return np.array([[[x, x + 0.1], [x + 0.2, x + 0.3]] for x in first], "float32")


def overruns(function, *args) -> str:
    """'CacheOverrun' if a call raises it, else what it did."""
    try:
        got = function(*args)
    except CacheOverrun:
        return "CacheOverrun"
    except (ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return f"returned {got}"


class Watched:
    """The real model; `passes` are the tokens and positions that it was asked to compute."""

    def __init__(self, eos_id: int | None = None):
        self.passes: list[tuple[list[int], list[int]]] = []
        self.eos_id = model().eos_id if eos_id is None else eos_id

    def __getattr__(self, name):
        return getattr(model(), name)

    def forward(self, tokens, positions, *args, **settings):
        self.passes.append((list(tokens), list(positions)))
        return model().forward(tokens, positions, *args, **settings)


class TestAppend:
    """Exercise 1: KVCache.append(layer, k, v)."""

    def test_new_tokens_stand_behind_the_old_ones(self):
        cache = KVCache(SMALL, 6)
        cache.append(1, rows(1, 2, 3), rows(11, 12, 13))
        cause = "append moved `length`; `advance` does, when the pass is over"
        expect("three tokens, no advance() yet", "length", cache.length, 0, cause, KEPT)
        cache.advance(3)
        cache.append(1, rows(4), rows(14))
        for name, array, want in (("k", cache.k, [1, 2, 3, 4]), ("v", cache.v, [11, 12, 13, 14])):
            cause = f"write {name} to the places length … length + n - 1 of the layer"
            got = [float(x) for x in array[1, :4, 0, 0]]
            expect(
                "three tokens, advance(3), one more",
                f"cache.{name}[1, :4, 0, 0]",
                got,
                [float(x) for x in want],
                cause,
                KEPT,
            )

    def test_all_numbers_of_a_token_are_stored(self):
        cache = KVCache(SMALL, 4)
        cache.append(0, rows(1), rows(5))
        got = np.round(cache.v[0, 0], 3).tolist(), np.round(cache.k[0, 0], 3).tolist()
        want = np.round(rows(5)[0], 3).tolist(), np.round(rows(1)[0], 3).tolist()
        expect("one token", "its v and k", got, want, "every head, every number; k to k, v to v", KEPT)

    def test_the_other_layers_are_left_alone(self):
        cache = KVCache(SMALL, 4)
        cache.append(1, rows(1), rows(5))
        got = [float(np.abs(cache.k[layer]).sum()) > 0 for layer in range(3)]
        expect("stored in layer 1", "layers with keys", got, [False, True, False], "write to k[layer], v[layer]", KEPT)

    def test_every_layer_stores_the_same_tokens_at_the_same_places(self):
        cache = KVCache(SMALL, 8)
        for layer in range(3):
            cache.append(layer, rows(1, 2), rows(3, 4))
        cause = "leave `length` alone: layer 1 stores the same tokens as layer 0, and advance() comes after the last layer"
        expect("three layers stored two tokens", "length", cache.length, 0, cause, KEPT)
        got = [float(x) for x in cache.k[2, :4, 0, 0]]
        expect("three layers stored two tokens", "cache.k[2, :4, 0, 0]", got, [1.0, 2.0, 0.0, 0.0], cause, KEPT)

    def test_the_last_slot_may_be_used(self):
        cache = KVCache(SMALL, 3)
        cause = "3 tokens in a cache of 3 are no overrun: compare with >"
        expect(
            "capacity 3, three tokens",
            "append()",
            overruns(cache.append, 0, rows(1, 2, 3), rows(1, 2, 3)),
            "returned None",
            cause,
            KEPT,
        )

    def test_an_overrun_is_refused_and_nothing_is_written(self):
        cache = KVCache(SMALL, 3)
        cache.append(0, rows(1, 2), rows(1, 2))
        cache.advance(2)
        cause = "length 2 + 2 new tokens are more than 3: raise CacheOverrun before you write"
        expect(
            "capacity 3, two stored, two more",
            "append()",
            overruns(cache.append, 0, rows(8, 9), rows(8, 9)),
            "CacheOverrun",
            cause,
            KEPT,
        )
        got = [float(x) for x in cache.k[0, :, 0, 0]]
        expect("after the overrun", "cache.k[0, :, 0, 0]", got, [1.0, 2.0, 0.0], cause, KEPT)


class TestRewind:
    """Exercise 2: KVCache.rewind(length)."""

    def filled(self):
        cache = KVCache(SMALL, 5)
        cache.k[0, :4] = cache.v[0, :4] = rows(1, 2, 3, 4)  # by hand: this exercise is not about append
        cache.length = 4
        return cache

    def test_it_forgets_what_lies_behind(self):
        cache = self.filled()
        cache.rewind(2)
        expect("four stored, rewind(2)", "length", cache.length, 2, "keep the first two: length = 2, not length - 2", BACK)
        cache.append(0, rows(9), rows(9))
        got = [float(x) for x in cache.k[0, :3, 0, 0]]
        expect(
            "one more token",
            "cache.k[0, :3, 0, 0]",
            got,
            [1.0, 2.0, 9.0],
            "the next append writes over what was forgotten",
            BACK,
        )

    def test_to_all_and_to_nothing_are_both_possible(self):
        for length in (4, 0):
            cache = self.filled()
            got = overruns(cache.rewind, length)
            expect(
                f"four stored, rewind({length})",
                "rewind()",
                got,
                "returned None",
                "0 <= length <= self.length is fine",
                BACK,
            )
            expect(f"four stored, rewind({length})", "length", cache.length, length, "keep the first `length`", BACK)

    def test_it_cannot_bring_tokens_back(self):
        for length in (5, -1):
            cache = self.filled()
            cause = "only 0 to 4 tokens can be kept of four: raise CacheOverrun"
            expect(
                f"four stored, rewind({length})", "rewind()", overruns(cache.rewind, length), "CacheOverrun", cause, BACK
            )
            expect(f"four stored, rewind({length})", "length", cache.length, 4, "a refused call changes nothing", BACK)


class TestAttend:
    """Exercise 3: attend(q, k, v)."""

    def check(self, where, got, want, cause):
        got, want = np.round(np.asarray(got, "float64"), 4).tolist(), np.round(np.asarray(want, "float64"), 4).tolist()
        expect(where, "attend()", got, want, cause, LAYER)

    def test_equal_keys_give_the_mean_of_the_values(self):
        q, k = np.ones((1, 1, 2)), np.ones((2, 1, 2))
        v = np.array([[[0.0, 4.0]], [[2.0, 8.0]]])
        cause = "equal scores, equal weights: 1/2 each; or a token was masked: with n = 1, m = 2 the query is token 1 and sees both"
        self.check("one query, two equal keys", attend(q, k, v), [[[1, 6]]], cause)

    def test_scores_are_divided_by_the_root_of_head_dim(self):
        q, k = np.ones((1, 1, 4)), np.zeros((2, 1, 4))
        k[0] = math.log(3) / 2  # q · k is 2 ln 3; over sqrt(4) it is ln 3
        v = np.array([[[4.0, 0, 0, 0]], [[0.0, 0, 0, 0]]])
        cause = "q · k / sqrt(head_dim): the weights are 3/4 and 1/4"
        self.check("scores ln 3 and 0 after scaling", attend(q, k, v), [[[3, 0, 0, 0]]], cause)

    def test_a_token_sees_itself_and_nothing_later(self):
        q, k = np.ones((3, 1, 1)), np.ones((3, 1, 1))
        v = np.array([[[0.0]], [[6.0]], [[12.0]]])
        cause = "token i sees 0 … i: the means of 0, of 0 6, and of 0 6 12"
        self.check("three tokens of a prompt", attend(q, k, v), [[[0]], [[3]], [[6]]], cause)

    def test_one_new_token_sees_all_that_is_stored(self):
        q, k = np.ones((1, 1, 1)), np.ones((3, 1, 1))
        v = np.array([[[0.0]], [[6.0]], [[12.0]]])
        cause = "the query belongs to the last token, number m - n + i: it sees all three"
        self.check("one new token, two stored", attend(q, k, v), [[[6]]], cause)

    def test_a_chunk_in_the_middle_is_causal_too(self):
        q, k = np.ones((2, 1, 1)), np.ones((4, 1, 1))
        v = np.array([[[0.0]], [[6.0]], [[12.0]], [[18.0]]])
        cause = "query 0 belongs to token 2, query 1 to token 3: count from m - n"
        self.check("two new tokens, two stored", attend(q, k, v), [[[6]], [[9]]], cause)

    def test_neighbouring_heads_share_a_key_value_head(self):
        q, k = np.ones((1, 4, 1)), np.ones((1, 2, 1))
        v = np.array([[[1.0], [2.0]]])
        cause = "head h reads h // 2: 0 0 1 1, not 0 1 0 1"
        self.check("4 heads, 2 key/value heads", attend(q, k, v), [[[1], [1], [2], [2]]], cause)

    def test_large_scores_do_not_overflow(self):
        q, k = np.full((1, 1, 1), 100.0), np.array([[[10.0]], [[10.0]]])
        v = np.array([[[1.0]], [[3.0]]])
        with np.errstate(all="ignore"):
            self.check("scores of 1000", attend(q, k, v), [[[2]]], "subtract the largest score before exp()")

    @given(st.integers(1, 4), st.integers(0, 4), st.integers(1, 2), st.integers(1, 3), st.integers(0, 99))
    def test_it_agrees_with_loops(self, n, stored, kv_heads, group, seed):
        rng, size, m = np.random.default_rng(seed), 3, stored + n
        q, k, v = (
            rng.normal(size=shape) for shape in ((n, kv_heads * group, size), (m, kv_heads, size), (m, kv_heads, size))
        )
        want = np.zeros(q.shape)
        for i in range(n):
            for head in range(kv_heads * group):
                seen = range(m - n + i + 1)
                weights = [math.exp(q[i, head] @ k[j, head // group] / math.sqrt(size)) for j in seen]
                want[i, head] = sum(w * v[j, head // group] for w, j in zip(weights, seen)) / sum(weights)
        close = np.allclose(attend(q, k, v), want)
        where = f"{n} new tokens, {stored} stored, {kv_heads * group} heads, {kv_heads} key/value heads"
        expect(where, "attend()", "right" if close else "other numbers", "right", "the four steps of the docstring", LAYER)

    def test_the_whole_prompt_and_its_pieces_come_to_the_same(self):
        tokens = model().encode("Once upon a time there was a")
        want = model().logits(tokens)[-1]
        for cuts in ([7], [1] * 8, [3, 1, 4], [5, 3]):
            cache, at = KVCache(model().config, 8, "float64"), 0
            for n in cuts:
                scores = compute(model(), cache, tokens[at : at + n])
                at += n
            want = model().logits(tokens[:at])[-1]
            off = float(np.abs(scores - want).max())
            cause = "a token's attention must not depend on which tokens came with it in the pass"
            expect(
                f"a prompt in passes of {cuts}", "largest difference of scores", off if off > 1e-9 else 0, 0, cause, LAYER
            )


class TestSlotsNeeded:
    """Exercise 4: slots_needed(prompt, max_tokens)."""

    def test_the_last_sampled_token_is_never_stored(self):
        for prompt, new, want in ((5, 4, 8), (5, 1, 5), (1, 1, 1), (100, 28, 127)):
            cause = "stored when fed, not when sampled; the last one is never fed: prompt + max_tokens - 1"
            expect(f"prompt {prompt}, max_tokens {new}", "slots_needed()", slots_needed(prompt, new), want, cause, STORED)


class TestGenerate:
    """Exercise 5: generate(model, prompt, max_tokens, sampling, rng)."""

    PROMPT = "Once upon a time"

    def test_the_prompt_in_one_pass_then_a_token_a_pass(self):
        watched = Watched()
        prompt = model().encode(self.PROMPT)
        made: list[int] = []
        overrun = None
        try:
            for token in generate(watched, prompt, 3):
                made.append(token)
        except CacheOverrun as error:
            overrun = error
        want = [(prompt, [0, 1, 2, 3, 4]), (made[:1], [5]), (made[1:2], [6])]
        if overrun and watched.passes == want[: len(watched.passes)]:
            cause = "too small a cache: slots_needed(…) is the prompt and all new tokens but the last"
            mismatch("a prompt of 5, max_tokens 3", "generate() raised", overrun, "no error", cause, STORED)
        cause = "pass 1 computes the prompt, each later pass the token just sampled; the last token is never computed"
        expect("a prompt of 5, max_tokens 3", "(tokens, positions) of each pass", watched.passes, want, cause, STORED)

    def test_the_cache_is_exactly_as_large_as_it_must_be(self):
        made: list[int] = []

        class Spy(KVCache):
            def __init__(self, config, capacity, *more):
                made.append(capacity)
                KVCache.__init__(self, config, capacity, *more)

        scope = generate.__globals__
        scope["KVCache"] = Spy
        try:
            list(generate(model(), model().encode(self.PROMPT), 3))
        finally:
            scope["KVCache"] = KVCache
        cause = "prompt + max_tokens - 1 slots: a slot more is never used, a slot less overruns"
        expect("a prompt of 5, max_tokens 3", "capacity", made, [7], cause, STORED)

    def test_the_same_tokens_as_without_a_cache(self):
        prompt = model().encode(self.PROMPT)
        want = list(s01_decode_loop.generate(model(), prompt, 20))
        got = list(generate(model(), prompt, 20))
        expect(f"{self.PROMPT!r}, greedy", "tokens", got, want, "a cache changes the work, never the tokens", STORED)

    def test_the_same_tokens_also_when_they_are_drawn(self):
        prompt, settings = model().encode("One"), Sampling(1.1, 50, 0.95)
        want = list(s01_decode_loop.generate(model(), prompt, 12, settings, Random(4)))
        got = list(generate(model(), prompt, 12, settings, Random(4)))
        cause = "pass `sampling` and the one `rng` on: one random number a token"
        expect("'One', temperature 1.1, seed 4", "tokens", got, want, cause, STORED)

    def test_it_ends_with_the_eos_token(self):
        prompt = model().encode(self.PROMPT)
        first = list(generate(model(), prompt, 3))
        got = list(generate(Watched(eos_id=first[1]), prompt, 3))
        cause = "after eos, which is yielded, nothing is computed"
        expect("the second token is eos", "tokens", got, first[: first.index(first[1]) + 1], cause, STORED)

    def test_a_token_is_there_before_the_next_is_computed(self):
        watched = Watched()
        next(iter(generate(watched, model().encode(self.PROMPT), 3)))
        expect("the first token was taken", "passes so far", len(watched.passes), 1, "yield inside the loop", STORED)

    def test_the_prompt_is_left_alone(self):
        prompt = model().encode(self.PROMPT)
        before = list(prompt)
        list(generate(model(), prompt, 2))
        expect("after two tokens", "prompt", prompt, before, "work on a list of your own", STORED)


class TestRewindAndGoOn:
    """The cache as a whole."""

    def test_after_a_rewind_the_scores_are_those_of_a_fresh_cache(self):
        tokens, other = model().encode("Once upon a time there was"), model().encode(" a", bos=False)
        cache = KVCache(model().config, 20, "float64")
        compute(model(), cache, tokens + other * 4)
        cache.rewind(len(tokens) - 1)
        off = float(np.abs(compute(model(), cache, tokens[-1:]) - model().logits(tokens)[-1]).max())
        cause = "what lies behind `length` must not be seen any more"
        expect("rewind, then the last token again", "largest difference", off if off > 1e-9 else 0, 0, cause, BACK)

    def test_an_overrun_leaves_the_cache_as_it_was(self, monkeypatch):
        def mean(q, k, v):  # in the place of `attend`: this test is about the cache
            return np.broadcast_to(np.repeat(v.mean(axis=0), q.shape[1] // v.shape[1], axis=0), q.shape)

        monkeypatch.setitem(compute.__globals__, "attend", mean)
        tokens = model().encode("Once upon a time")
        cache, fresh = KVCache(model().config, 5, "float64"), KVCache(model().config, 5, "float64")
        for one in (cache, fresh):
            compute(model(), one, tokens[:4])
        got = overruns(compute, model(), cache, tokens[:2])
        cause = "raise before you write, and let only advance() move `length`"
        expect("4 of 5 slots used, 2 more tokens", "compute()", got, "CacheOverrun", cause, KEPT)
        expect("after a refused pass", "length", cache.length, 4, cause, KEPT)
        after, want = (compute(model(), one, tokens[4:]) for one in (cache, fresh))
        if not np.allclose(after, want, rtol=0, atol=1e-9):
            mismatch("after a refused pass", "compute()", "other scores", "those of a fresh cache", cause, KEPT)


class TestKvBytesPerToken:
    """Exercise 6: kv_bytes_per_token(…)."""

    def test_real_models(self):
        for name, layers, kv_heads, size, want in (
            ("Llama-2-7B", 32, 32, 128, 524_288),
            ("Llama-2-13B", 40, 40, 128, 819_200),
            ("Llama-3-8B", 32, 8, 128, 131_072),
            ("Llama-3-70B", 80, 8, 128, 327_680),
            ("Qwen3-0.6B", 28, 8, 128, 114_688),
        ):
            cause = "a key and a value (2), layers, key/value heads, numbers a head, 2 bytes a number"
            got = kv_bytes_per_token(layers, kv_heads, size)
            if isinstance(got, float) and got == want:
                mismatch(f"{name}, float16", "kv_bytes_per_token()", got, want, "use //: a whole number", SIZE)
            expect(f"{name}, float16", "kv_bytes_per_token()", got, want, cause, SIZE)

    def test_other_numbers_take_other_bytes(self):
        got = [kv_bytes_per_token(4, 2, 32, n) for n in (1, 2, 4)]
        expect(
            "TinyLM in 1, 2 and 4 bytes",
            "kv_bytes_per_token()",
            got,
            [512, 1024, 2048],
            "multiply by bytes_per_number",
            SIZE,
        )

    def test_it_is_what_the_cache_allocates(self):
        cache = KVCache(SMALL, 7, "float16")
        cache.append(0, rows(1), rows(1))
        want = (cache.k.nbytes + cache.v.nbytes) // 7
        expect("3 layers, 2 key/value heads of 2", "bytes a token", kv_bytes_per_token(3, 2, 2), want, "both k and v", SIZE)

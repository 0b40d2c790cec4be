"""s06: keys and values in blocks, a mixed batch as one flat list, and the model behind the engine."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from random import Random

import numpy as np
import pytest
import s02_kv_cache as s02
from hypothesis import given
from hypothesis import strategies as st
from kit.errors import BlockError
from kit.request import Request
from kit.tinylm import ModelConfig, TinyLM
from s03_step_cost import A100_LLAMA3_8B
from s05_paged_blocks import BlockPool
from s06_paged_attention import FlatBatch, PagedRunner, flatten, gather, paged_attention, slot_mapping, write_kv
from support import expect, mismatch

SLOT = "s06_paged_attention/From a token to its slot"
STORE = "s06_paged_attention/Write and gather"
FLAT = "s06_paged_attention/One flat list"
OWN = "s06_paged_attention/Each request its own keys"
ENGINE = "s06_paged_attention/Behind the engine"
SMALL = ModelConfig(50, 8, 16, 2, 4, 2, 2, 64, 1e-5, 1e4, 1, 0)  # 2 layers, 2 key/value heads of size 2
PROMPTS = ("Once upon a time", "Long ago, a little", "Once upon a time there was a young squirrel")
NEW = 8


@lru_cache
def model() -> TinyLM:
    """In float64, where two ways to compute the same scores differ by 1e-13, so that no token hangs on rounding."""
    return TinyLM.load(dtype="float64")


@lru_cache
def alone(prompt: str, new: int = NEW) -> list[int]:
    """What s02 makes of a prompt: its own contiguous cache, nobody else in the step."""
    return list(s02.generate(model(), model().encode(prompt), new))


def rows(*first: float, heads: int = 2):
    """Keys or values of tokens, [n, heads, 2], told apart by their first number."""
    return np.array([[[x + h / 10, x + h / 10 + 0.01] for h in range(heads)] for x in first])


def empty(num_blocks: int, block_size: int, heads: int = 2):
    """A cache in which every number that nobody has written is NaN."""
    return np.full((num_blocks, block_size, heads, 2), np.nan)


def firsts(array) -> list[float]:
    """The first number of each token, by which `rows` tells them apart; NaN as None."""
    return [None if np.isnan(x) else round(float(x), 3) for x in array.reshape(-1, *array.shape[-2:])[:, 0, 0]]


def seen(cache) -> dict[int, float]:
    """slot -> first number, for all slots that were written."""
    return {slot: x for slot, x in enumerate(firsts(cache)) if x is not None}


def refused(function, *args) -> str:
    """'BlockError' if a call raises it, else what it did."""
    try:
        got = function(*args)
    except BlockError:
        return "BlockError"
    except (ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return f"returned {got}"


class Step:
    """A batch: request -> number of tokens, in order, as a scheduler leaves it: `num_computed_tokens` is moved already."""

    def __init__(self, *parts: tuple[Request, int]):
        self.tokens = dict(parts)


def known(id: str, prompt: int, made: int = 0, computed: int = 0, blocks=()) -> Request:
    """A request with tokens of its own, of which `computed` are (or will be, after this step) stored in `blocks`."""
    first = 100 * (ord(id[0]) - ord("A") + 1)
    request = Request(id, range(first, first + prompt), 20, output=list(range(first + 50, first + 50 + made)))
    request.num_computed_tokens, request.blocks = computed, list(blocks)
    return request


class Table:
    """The pool and the runner, driven by hand: each step a list of (request, number of tokens)."""

    def __init__(self, num_blocks: int = 60, block_size: int = 4, shuffled: bool = True):
        self.pool = BlockPool(num_blocks, block_size)
        if shuffled:
            Random(3).shuffle(self.pool.free_blocks)
        self.runner = PagedRunner(model(), num_blocks, block_size)
        self.runner.k[:] = self.runner.v[:] = np.nan  # who reads a slot that nobody wrote gets nonsense

    def request(self, prompt: str, new: int = NEW) -> Request:
        return Request(prompt, model().encode(prompt), new)

    def step(self, *parts: tuple[Request, int]) -> None:
        for request, n in parts:
            self.pool.grow(request, n)
            request.num_computed_tokens += n
        tokens, _ = self.runner.execute(Step(*parts))
        for request, _ in parts:
            request.output += tokens.get(request.id, [])
            request.num_tokens = len(request.prompt) + len(request.output)

    def to_end(self, *requests: Request) -> None:
        """Everybody computes all they are behind by, until each has its tokens."""
        while live := [r for r in requests if len(r.output) < r.max_tokens]:
            self.step(*((r, r.num_tokens - r.num_computed_tokens) for r in live))


def same_as_alone(where: str, request: Request, cause: str, see: str) -> None:
    __tracebackhide__ = True
    want = alone(request.id, request.max_tokens)
    if request.output != want:
        mismatch(where, f"{request.id!r} gets", model().decode(request.output), model().decode(want), cause, see)


class TestSlotMapping:
    """Exercise 1: slot_mapping(blocks, start, n, block_size)."""

    def check(self, blocks, start, n, size, want, cause):
        __tracebackhide__ = True
        call, where = f"slot_mapping({blocks}, {start}, {n}, {size})", f"a table of {len(blocks)} blocks of {size}"
        try:
            got = slot_mapping(blocks, start, n, size)
        except BlockError as error:
            cause = f"{start + n} tokens fit into {len(blocks)} blocks of {size}: compare with >"
            mismatch(where, call, f"BlockError: {error}", want, cause, SLOT)
        expect(where, call, got, want, cause, SLOT)

    def test_a_prompt_goes_where_its_blocks_lie(self):
        want = [28, 29, 30, 31, 8, 9, 10, 11, 20, 21]
        cause = "token 4 is the first of the table's second block, and that one is block 2: look every block up"
        self.check([7, 2, 5], 0, 10, 4, want, cause)

    def test_a_decode_goes_behind_what_is_stored(self):
        self.check(
            [7, 2], 5, 1, 4, [9], "`start` counts from the request's first token: token 5 is place 1 of its second block"
        )

    def test_a_piece_of_a_prompt_may_begin_inside_a_block(self):
        self.check([3, 0, 6], 2, 4, 3, [11, 0, 1, 2], "token 2 is the last place of block 3, token 3 the first of block 0")

    def test_blocks_of_one_token(self):
        self.check([4, 1, 3], 0, 3, 1, [4, 1, 3], "with block_size 1 a slot is a block")

    def test_a_table_that_ends_too_early_is_refused(self):
        where, cause = (
            "2 blocks of 4, tokens 7 and 8",
            "token 8 needs a third block: raise BlockError, before any index fails",
        )
        expect(where, "slot_mapping()", refused(slot_mapping, [7, 2], 7, 2, 4), "BlockError", cause, SLOT)
        cause = "8 tokens fit into 2 blocks of 4: compare with >"
        expect(
            "2 blocks of 4, token 7", "slot_mapping()", refused(slot_mapping, [7, 2], 7, 1, 4), "returned [11]", cause, SLOT
        )

    @given(st.sampled_from((1, 4, 16)), st.integers(1, 40), st.randoms(use_true_random=False))
    def test_every_token_has_its_own_slot_however_it_is_cut(self, size, n, random):
        blocks = random.sample(range(60), -(-n // size))
        cut = random.randint(0, n)
        whole = slot_mapping(blocks, 0, n, size)
        where = f"{n} tokens in blocks {blocks} of {size}"
        cause = "a slot depends on the token's place in its request, not on the step that computes it"
        pieces = slot_mapping(blocks, 0, cut, size) + slot_mapping(blocks, cut, n - cut, size)
        expect(where, f"cut at {cut}", pieces, whole, cause, SLOT)
        expect(where, "different slots", len(set(whole)), n, "two tokens in one slot: one of them is lost", SLOT)
        got = [block for block, _ in groupby(slot // size for slot in whole)]
        expect(where, "blocks in order", got, blocks, "blocks are used in the order of the table", SLOT)


class TestWriteKV:
    """Exercise 2: write_kv(cache, slots, new)."""

    def test_slots_may_be_a_list(self):
        cache = empty(2, 2)
        try:
            write_kv(cache, [0], rows(1))
            got = "no error"
        except TypeError as error:
            got = f"TypeError: {error}"
        cause = "`slots` is a list, and a list can't be divided: make an array of it, np.asarray(slots)"
        expect("slots [0]", "write_kv()", got, "no error", cause, STORE)

    def test_each_token_goes_to_its_slot_and_nothing_else_is_touched(self):
        cache = empty(4, 3)
        write_kv(cache, [7, 2, 9], rows(1, 2, 3))
        cause = "slot 7 in blocks of 3 is block 2, place 1: divide by block_size, and write into `cache` itself"
        expect("slots 7, 2, 9", "slot: first number", seen(cache), {7: 1, 2: 2, 9: 3}, cause, STORE)

    def test_all_numbers_of_a_token_are_stored(self):
        cache = empty(2, 2)
        write_kv(cache, [3], rows(5))
        got = np.round(cache[1, 1], 3).tolist()
        expect("slot 3", "cache[1, 1]", got, np.round(rows(5)[0], 3).tolist(), "every head, every number", STORE)

    def test_a_slot_is_written_over(self):
        cache = empty(2, 2)
        write_kv(cache, [1, 2], rows(1, 2))
        write_kv(cache, [2], rows(9))
        cause = "a block comes back with its old content: the new owner writes over it, it doesn't add"
        expect("slot 2 written twice", "slot: first number", seen(cache), {1: 1, 2: 9}, cause, STORE)


class TestGather:
    """Exercise 3: gather(cache, blocks, num_tokens)."""

    def test_tokens_come_back_in_their_own_order(self):
        cache = rows(*range(12)).reshape(4, 3, 2, 2)  # slot s holds s
        cause = "take the blocks in the order of the table, not of the pool"
        expect("slot s holds s", "gather([3, 0, 2], 9)", firsts(gather(cache, [3, 0, 2], 9)),
               [9, 10, 11, 0, 1, 2, 6, 7, 8], cause, STORE)  # fmt: skip

    def test_it_ends_with_the_last_token(self):
        cache = rows(*range(12)).reshape(4, 3, 2, 2)
        got = gather(cache, [3, 0, 2], 4)
        cause = "behind the request's last token lie numbers of somebody else: cut at num_tokens"
        expect("slot s holds s", "gather([3, 0, 2], 4)", firsts(got), [9, 10, 11, 0], cause, STORE)
        expect("4 tokens", "shape", got.shape, (4, 2, 2), "[num_tokens, num_kv_heads, head_dim]", STORE)

    @given(st.sampled_from((1, 4, 16)), st.integers(1, 40), st.randoms(use_true_random=False))
    def test_what_was_written_comes_back(self, size, n, random):
        blocks = random.sample(range(50), -(-n // size))
        cache, new = empty(50, size), rows(*range(n))
        write_kv(cache, slot_mapping(blocks, 0, n, size), new)
        cause = "write_kv and gather must agree where slot s is"
        expect(
            f"{n} tokens in blocks {blocks} of {size}",
            "gather()",
            firsts(gather(cache, blocks, n)),
            firsts(new),
            cause,
            STORE,
        )


class TestFlatten:
    """Exercise 4: flatten(batch, block_size)."""

    def mixed(self) -> FlatBatch:
        """A decodes, B computes its whole prompt, C a piece of its prompt; blocks of 4, each with one to spare."""
        a = known("A", 4, made=2, computed=6, blocks=(5, 1, 6))
        b = known("B", 3, computed=3, blocks=(8, 2))
        c = known("C", 7, computed=5, blocks=(0, 7, 3))
        return flatten(Step((a, 1), (b, 3), (c, 2)), 4)

    def check(self, call, want, cause):
        __tracebackhide__ = True
        expect("A 1 token (a decode), B 3 (a prompt), C 2 (a piece)", call, getattr(self.mixed(), call), want, cause, FLAT)

    def test_the_tokens_stand_one_behind_the_other(self):
        cause = "schedule() has moved num_computed_tokens: take the n tokens before it, of prompt and output"
        self.check("tokens", [151, 200, 201, 202, 303, 304], cause)

    def test_each_token_keeps_the_position_in_its_own_request(self):
        cause = "a position is a token's place in its request: A's is 5, B's begin at 0, C's at 3"
        self.check("positions", [5, 0, 1, 2, 3, 4], cause)

    def test_each_token_has_the_slot_of_its_own_table(self):
        self.check("slot_mapping", [5, 32, 33, 34, 3, 28], "slot_mapping(request.blocks, start, n, block_size), for each")

    def test_the_boundaries_begin_at_0_and_end_at_the_number_of_tokens(self):
        self.check(
            "query_start_loc", [0, 1, 4, 6], "sums, not lengths: request i has the tokens from entry i up to entry i + 1"
        )

    def test_the_lengths_count_what_is_stored_after_this_step(self):
        cause = "a token attends to itself and to all before it: count the tokens that this step stores, and none beyond"
        self.check("seq_lens", [6, 3, 5], cause)

    def test_each_request_brings_its_table(self):
        self.check("block_tables", [[5, 1, 6], [8, 2], [0, 7, 3]], "request.blocks, in batch order")

    def test_an_evicted_request_computes_its_own_output_again(self):
        a = known("A", 3, made=3, computed=6, blocks=(2, 0))
        cause = "its output is lost with its KV only if you look at the prompt alone: take prompt + output"
        expect("A evicted after 3 outputs, all 6 tokens again", "tokens", flatten(Step((a, 6)), 4).tokens,
               [100, 101, 102, 150, 151, 152], cause, FLAT)  # fmt: skip

    def test_a_request_without_its_blocks_is_refused(self):
        a = known("A", 5, computed=5, blocks=(2,))
        cause = "5 tokens, one block of 4: leave that to slot_mapping, which raises"
        expect("5 tokens, 1 block of 4", "flatten()", refused(flatten, Step((a, 5)), 4), "BlockError", cause, FLAT)


class TestPagedAttention:
    """Exercise 5: paged_attention(q, k_cache, v_cache, flat)."""

    def pool(self, size: int = 2):
        """Keys all 1, so that each token takes the mean of the values it sees. Blocks 3, 0: A's values 0, 6, 12. Block 1: B's 100, 200."""
        k, v = empty(5, size, heads=1), empty(5, size, heads=1)
        for slots, values in ((slot_mapping([3, 0], 0, 3, size), (0, 6, 12)), (slot_mapping([1], 0, 2, size), (100, 200))):
            for slot, value in zip(slots, values):
                k[slot // size, slot % size], v[slot // size, slot % size] = 1, value
        return k, v

    def check(self, where, flat, n, want, cause):
        __tracebackhide__ = True
        k, v = self.pool()
        got = paged_attention(np.ones((n, 1, 2)), k, v, flat)
        expect(where, "each token takes", firsts(got), want, cause, OWN)

    def test_a_decode_sees_all_of_its_request(self):
        flat = FlatBatch([0], [2], [0], [0, 1], [3], [[3, 0]])
        self.check(
            "A's third token; its values are 0, 6, 12", flat, 1, [6], "all three, read through the table: blocks 3, 0"
        )

    def test_a_prompt_sees_backwards_only(self):
        flat = FlatBatch([0] * 3, [0, 1, 2], [6, 7, 0], [0, 3], [3], [[3, 0]])
        cause = "the means of 0, of 0 6, of 0 6 12: s02's attend masks the rest, if q holds the request's n last tokens"
        self.check("A's three tokens; its values are 0, 6, 12", flat, 3, [0, 3, 6], cause)

    def test_two_requests_do_not_see_each_other(self):
        flat = FlatBatch([0] * 3, [2, 0, 1], [0, 2, 3], [0, 1, 3], [3, 2], [[3, 0], [1]])
        cause = "attend once for each request, over its own table and its own length"
        self.check("A decodes, B computes its prompt (values 100, 200)", flat, 3, [6, 100, 150], cause)

    def test_each_request_has_its_own_length(self):
        flat = FlatBatch([0] * 2, [1, 2], [3, 0], [0, 1, 2], [2, 3], [[1, 4], [3, 0]])
        cause = "B has 2 tokens and A 3: gather up to seq_lens[i], not up to one length for all"
        self.check("B decodes (values 100, 200; one block to spare), A decodes", flat, 2, [150, 6], cause)

    def test_the_order_of_the_batch_is_the_order_of_the_result(self):
        flat = FlatBatch([0] * 3, [0, 1, 2], [2, 3, 0], [0, 2, 3], [2, 3], [[1], [3, 0]])
        cause = "write the result to the slice that the queries came from"
        self.check("B computes its prompt, A decodes", flat, 3, [100, 150, 6], cause)

    @given(st.sampled_from((1, 4, 16)), st.integers(0, 2**32 - 1))
    def test_it_is_the_attention_of_s02(self, size, seed):
        random, numbers = Random(seed), np.random.default_rng(seed)
        k_cache, v_cache = np.full((2, 60, size, 2, 4), np.nan)
        free, flat, want = random.sample(range(60), 60), FlatBatch(), []
        for _ in range(random.randint(1, 4)):
            total = random.randint(1, 12)
            n = random.choice((1, total, random.randint(1, total)))
            k, v = numbers.normal(size=(2, total, 2, 4))
            blocks = [free.pop() for _ in range(-(-total // size))]
            for cache, new in ((k_cache, k), (v_cache, v)):
                for p in range(total):
                    cache[blocks[p // size], p % size] = new[p]
            q = numbers.normal(size=(n, 4, 4))
            want.append((q, s02.attend(q, k, v)))
            flat.query_start_loc.append(flat.query_start_loc[-1] + n)
            flat.seq_lens.append(total)
            flat.block_tables.append(blocks)
        got = paged_attention(np.concatenate([q for q, _ in want]), k_cache, v_cache, flat)
        far = float(np.abs(got - np.concatenate([out for _, out in want])).max())
        cause = "for each request its own slice of q, gather up to its seq_lens, s02's attend with 4 query and 2 key/value heads"
        where = f"{len(want)} requests, blocks of {size}"
        expect(where, "same as s02 with contiguous keys", far < 1e-9, True, cause, OWN)


class Asked:
    """A model that computes nothing: the most probable token after row i of the step is 10 + i. `calls`: what it was asked."""

    config, dtype = SMALL, "float64"

    def __init__(self):
        self.calls = []

    def forward(self, tokens, positions, attention, rows=None):
        self.calls.append((list(tokens), list(positions)))
        scores = np.zeros((len(tokens), 50))
        scores[range(len(tokens)), range(10, 10 + len(tokens))] = 1
        return scores if rows is None else scores[list(rows)]


class TestExecute:
    """Exercise 6: PagedRunner.execute(batch)."""

    def mixed(self):
        a = known("A", 4, made=2, computed=6, blocks=(5, 1))
        b = known("B", 3, computed=3, blocks=(8,))
        c = known("C", 7, computed=5, blocks=(0, 7))
        runner = PagedRunner(Asked(), 10, 4)
        return runner, Step((a, 1), (c, 2), (b, 3))

    def executed(self, runner, step):
        """The tokens of a step. A row that the step doesn't have is told as what it is."""
        __tracebackhide__ = True
        try:
            return runner.execute(step)[0]
        except IndexError as error:
            cause = "rows count from 0: the last token of request i is row query_start_loc[i + 1] - 1"
            mismatch(self.WHERE, "execute() raised", f"IndexError: {error}", "no error", cause, ENGINE)

    WHERE = "A 1 token, C 2 of 7, B 3 of 3"

    def test_a_prompt_that_is_not_complete_samples_nothing(self):
        runner, step = self.mixed()
        tokens = self.executed(runner, step)
        kinds = sorted({type(key).__name__ for key in tokens})
        expect(
            self.WHERE, "the keys are of type", kinds, ["str"], "a token belongs to a request's id, `request.id`", ENGINE
        )
        cause = "C has computed 5 of 7 tokens: what follows is known, and no token is sampled"
        expect(self.WHERE, "who samples", sorted(tokens), ["A", "B"], cause, ENGINE)

    def test_an_output_in_the_middle_samples_nothing(self):
        r = known("R", 4, computed=5, blocks=(0, 1))
        r.output, r.num_tokens = [20, 21, 22], 7
        tokens, _ = PagedRunner(Asked(), 10, 4).execute(Step((r, 5)))
        where = "evicted after 3 outputs, 5 of its 7 tokens are computed again, the prompt's 4 among them"
        cause = "compare with num_tokens, not with the prompt: its sixth token is known already"
        expect(where, "execute()", dict(tokens), {}, cause, ENGINE)

    def test_each_gets_a_list_of_one_token(self):
        runner, step = self.mixed()
        tokens = self.executed(runner, step)
        got = {id: f" {len(x)} in a list" if isinstance(x, list) else f" {type(x).__name__}" for id, x in tokens.items()}
        got, want = {id: got.get(id) for id in "AB"}, {id: " 1 in a list" for id in "AB"}
        expect(self.WHERE, "execute()", got, want, "a list for each, with its one new token: [int(row.argmax())]", ENGINE)

    def test_the_scores_of_a_requests_last_token_make_its_next(self):
        runner, step = self.mixed()
        tokens = self.executed(runner, step)
        got = {id: tokens.get(id) for id in "AB"}
        cause = "B's last token is row 5 of the step: query_start_loc[i + 1] - 1"
        expect(f"{self.WHERE}; row i says 10 + i", "execute()", got, {"A": [10], "B": [15]}, cause, ENGINE)

    def test_it_returns_the_token_and_appends_nothing(self):
        runner, step = self.mixed()
        self.executed(runner, step)
        got = {request.id: list(request.output) for request in step.tokens}
        cause = "return the token only: the engine appends it, and twice would be once too often"
        expect(self.WHERE, "outputs after execute()", got, {"A": [150, 151], "C": [], "B": []}, cause, ENGINE)

    def test_a_step_of_pieces_only_samples_nothing(self):
        table = Table()
        request = table.request(PROMPTS[2])
        table.pool.grow(request, 3)
        request.num_computed_tokens = 3
        tokens, _ = table.runner.execute(Step((request, 3)))
        cause = "it computes and stores, and nobody has caught up: {}"
        expect(f"3 of {request.num_tokens} tokens", "execute()", dict(tokens), {}, cause, ENGINE)

    def test_all_go_through_the_model_in_one_pass(self):
        runner, step = self.mixed()
        runner.execute(step)
        want = [([151, 303, 304, 200, 201, 202], [5, 3, 4, 0, 1, 2])]
        cause = "one forward for the whole batch: that is what reads the weights once"
        expect("A 1 token, C 2, B 3", "forward() got", runner.model.calls, want, cause, ENGINE)

    def test_the_time_is_the_cost_models(self):
        runner, step = self.mixed()
        _, ns = runner.execute(step)
        cause = "step_ns(6 tokens computed, 6 + 5 + 3 tokens held): the sum of seq_lens"
        expect("A 1 token, C 2, B 3", "nanoseconds", ns, A100_LLAMA3_8B.step_ns(6, 14), cause, ENGINE)

    def test_a_request_gets_the_tokens_of_s02(self):
        for size in (1, 4, 16):
            table = Table(block_size=size)
            request = table.request(PROMPTS[0])
            table.to_end(request)
            cause = "the same keys and values as in s02, only in other places: check slots, table and length"
            same_as_alone(f"alone in the pool, blocks of {size}, NaN where nobody wrote", request, cause, ENGINE)

    def test_a_prompt_in_pieces_gives_the_same_tokens(self):
        for piece in (1, 2, 3):
            table = Table()
            request = table.request(PROMPTS[2])
            while request.num_computed_tokens < len(request.prompt):
                table.step((request, min(piece, len(request.prompt) - request.num_computed_tokens)))
            table.to_end(request)
            cause = (
                "a piece continues where the last one ended: positions, slots and lengths count from the request's begin"
            )
            same_as_alone(f"the prompt in pieces of {piece}", request, cause, ENGINE)

    def test_who_shares_a_step_shares_nothing_else(self):
        for size in (1, 4, 16):
            table = Table(block_size=size)
            requests = [table.request(prompt) for prompt in PROMPTS]
            table.step((requests[0], len(requests[0].prompt)))
            table.step((requests[0], 1), (requests[1], len(requests[1].prompt)))
            table.step((requests[2], 3), (requests[0], 1), (requests[1], 1))
            table.to_end(*requests)
            for request in requests:
                cause = "tokens never depend on the schedule: each request has its own positions, slots and length"
                same_as_alone(f"three requests join one after the other, blocks of {size}", request, cause, ENGINE)

    def test_a_block_with_a_former_owners_numbers_is_clean_enough(self):
        table = Table(num_blocks=5, block_size=4)
        first, second = table.request(PROMPTS[0]), table.request(PROMPTS[1])
        table.to_end(first)
        table.pool.release(first)
        table.to_end(second)
        cause = "nobody empties a block: read no slot behind the request's own last token"
        same_as_alone("five blocks, used by another request before", second, cause, ENGINE)

    def test_an_evicted_request_comes_back_with_the_same_tokens(self):
        table = Table(num_blocks=12)
        stays, evicted = table.request(PROMPTS[0]), table.request(PROMPTS[1])
        for _ in range(3):
            table.step(*((r, r.num_tokens - r.num_computed_tokens) for r in (stays, evicted)))
        table.pool.release(evicted)  # its KV is gone, its output stays
        table.step((stays, 1))  # takes over what came free
        table.step((stays, 1))
        table.to_end(stays, evicted)
        for request in (stays, evicted):
            cause = "it computes prompt and output again, at other places: the same tokens follow"
            same_as_alone("one evicted after three steps, and back two steps later", request, cause, ENGINE)

    @pytest.mark.parametrize("seed", range(6))
    def test_tokens_never_depend_on_the_schedule(self, seed):
        random, size = Random(seed), (1, 4, 16)[seed % 3]
        table = Table(num_blocks=100, block_size=size)
        requests = [table.request(prompt, 4) for prompt in PROMPTS]
        evictions = 0
        while live := [r for r in requests if len(r.output) < 4]:
            if evictions < 2 and random.random() < 0.3:
                table.pool.release(random.choice(live))
                evictions += 1
            chosen = random.sample(live, random.randint(1, len(live)))
            table.step(*((r, random.randint(1, r.num_tokens - r.num_computed_tokens)) for r in chosen))
        for request in requests:
            cause = "any mix, any pieces, any evictions: the same tokens"
            same_as_alone(f"a random schedule, blocks of {size}", request, cause, ENGINE)

"""s05: KV memory in blocks. Exercise by exercise, then the block boundary step by step, then random comings and goings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.errors import BlockError, NoFreeBlocks
from kit.request import Request
from kit.workloads import parse_request, read_workloads
from s05_paged_blocks import BlockPool, blocks_needed, slot
from support import expect, mismatch

ARITHMETIC = "s05_paged_blocks/The arithmetic"
POOL = "s05_paged_blocks/The pool"
GROW = "s05_paged_blocks/When a block is opened"
RELEASE = "s05_paged_blocks/Letting go"
SLOT = "s05_paged_blocks/What the table is for"


def request(stored: int, blocks: Iterable[int] = (), known: int = 0, name: str = "A") -> Request:
    """A request that has stored `stored` tokens in `blocks` and knows `known`, or one more than it has stored."""
    one = Request(name, range(known or stored + 1), 100)
    one.num_computed_tokens, one.blocks = stored, list(blocks)
    return one


def pool_with(num_blocks: int, used: int = 0, block_size: int = 4) -> BlockPool:
    """A pool whose blocks 0 … used - 1 are handed out: by hand, so that a test of `free` doesn't need `allocate`."""
    pool = BlockPool(num_blocks, block_size)
    for block in range(used):
        pool.free_blocks.remove(block)
        pool.is_free[block] = False
        pool.num_free -= 1
    return pool


def numbers(blocks: Iterable[int]) -> str:
    return " ".join(map(str, blocks)) or "none"


def raised(where: str, call: str, kind: type[Exception], cause: str, see: str, function: Callable, *args: Any) -> str:
    """The text of the error that a call has to raise; a Mismatch if it raises none."""
    __tracebackhide__ = True
    try:
        got = function(*args)
    except kind as error:
        return str(error)
    except (IndexError, TypeError) as error:
        mismatch(where, call.replace("returned", "raised"), f"{type(error).__name__}: {error}", kind.__name__, cause, see)
    mismatch(where, call, f"{got!r}, no error", kind.__name__, cause, see)


def check_pool(pool: BlockPool, requests: Iterable[Request], where: str, see: str) -> None:
    """Each block has one place: free, or in one table. And the pool's three records agree."""
    __tracebackhide__ = True
    owner: dict[int, str] = {}
    for one in requests:
        for block in one.blocks:
            if block in owner:
                text = f"{owner[block]} and {one.id} both hold block {block}"
                cause = "a block was handed out that is not free: each writes over the other's KV"
                mismatch(where, "block tables", text, "one owner a block", cause, see)
            owner[block] = one.id
    free = sorted(pool.free_blocks)
    both = [block for block in free if block in owner]
    cause = "a block that a table holds went back to the pool, or was never taken out of `free_blocks`"
    expect(where, "blocks both free and in a table", numbers(both), "none", cause, see)
    cause = "a block in no table and not free is lost for ever: a leak; one that is free twice has been freed twice"
    expect(where, "free + held", numbers(sorted([*free, *owner])), numbers(range(pool.num_blocks)), cause, see)
    expect(where, "num_free", pool.num_free, len(free), "num_free counts `free_blocks`: keep it in step", see)
    marks = numbers(block for block in range(pool.num_blocks) if pool.is_free[block])
    expect(where, "blocks marked in is_free", marks, numbers(free), "is_free marks exactly what `free_blocks` holds", see)


class TestBlocksNeeded:
    """Exercise 1: blocks_needed(num_tokens, block_size)."""

    def check(self, tokens: int, size: int, want: int, cause: str) -> None:
        __tracebackhide__ = True
        where = f"{tokens} tokens in blocks of {size}"
        expect(where, "blocks_needed()", blocks_needed(tokens, size), want, cause, ARITHMETIC)

    def test_no_tokens_need_no_block(self):
        self.check(0, 16, 0, "0 tokens, 0 blocks: nothing is held before something is stored; and 16 tokens need 1")

    @pytest.mark.parametrize("tokens", (1, 15))
    def test_a_started_block_is_a_whole_block(self, tokens):
        self.check(tokens, 16, 1, "round up: the first token already needs a block")

    @pytest.mark.parametrize(("tokens", "want"), ((16, 1), (32, 2)))
    def test_a_full_block_needs_no_second_one(self, tokens, want):
        self.check(tokens, 16, want, "floor plus one is not rounding up: a full block has no token beyond it")

    @pytest.mark.parametrize(("tokens", "want"), ((17, 2), (33, 3)))
    def test_one_token_more_needs_one_block_more(self, tokens, want):
        self.check(tokens, 16, want, "round up: the token after a full block needs a block of its own")

    @pytest.mark.parametrize("tokens", (0, 1, 2, 17))
    def test_with_blocks_of_one_token_a_token_is_a_block(self, tokens):
        self.check(tokens, 1, tokens, "block size 1 is legal: as many blocks as tokens")

    def test_it_is_exact_beyond_what_a_float_holds(self):
        self.check(2**53 + 1, 1, 2**53 + 1, "division by `/` goes through a float: use whole numbers, // rounds down")

    @given(st.integers(0, 500), st.integers(1, 40))
    def test_it_is_the_least_number_of_blocks_that_holds_them(self, tokens, size):
        got = blocks_needed(tokens, size)
        where, cause = f"{tokens} tokens in blocks of {size}", "enough slots, and not one block more"
        room = f"{got} blocks, {got * size} slots"
        ok = got * size >= tokens and (got - 1) * size < max(tokens, 1)
        expect(where, "blocks_needed()", room, room if ok else "the least that hold them all", cause, ARITHMETIC)


class TestAllocate:
    """Exercise 2: BlockPool.allocate."""

    def test_it_hands_out_from_the_top_of_the_stack(self):
        pool = pool_with(4)
        got = numbers(pool.allocate(3))
        cause = "pop() takes the end of `free_blocks`, where block 0 lies: one after another, in that order"
        expect("a new pool of 4, asked for 3", "allocate(3)", got, "0 1 2", cause, POOL)

    def test_what_it_hands_out_is_free_no_more(self):
        pool, a = pool_with(4), request(0)
        a.blocks = pool.allocate(3)
        check_pool(pool, [a], "a new pool of 4, asked for 3", POOL)

    def test_the_last_block_may_be_taken(self):
        pool = pool_with(3, used=1)
        cause = "asking for all that are free is no error: refuse only if `num_blocks` is more than `num_free`"
        try:
            got = numbers(pool.allocate(2))
        except NoFreeBlocks as error:
            got = f"NoFreeBlocks: {error}"
        expect("2 of 3 blocks are free, asked for 2", "allocate(2)", got, "1 2", cause, POOL)

    def test_nothing_is_handed_out_for_nothing(self):
        pool = pool_with(3, used=3)
        expect("no block is free, asked for 0", "allocate(0)", pool.allocate(0), [], "0 blocks are always there", POOL)

    def test_too_many_are_refused_and_none_is_handed_out(self):
        pool, a = pool_with(4, used=2), request(0, [0, 1])
        where = "2 of 4 blocks are free, asked for 3"
        cause = "all or none: compare with `num_free` before the first pop"
        raised(where, "allocate(3) returned", NoFreeBlocks, cause, POOL, pool.allocate, 3)
        expect(where, "free blocks after it", numbers(sorted(pool.free_blocks)), "2 3", cause, POOL)
        check_pool(pool, [a], where, POOL)

    def test_a_refusal_says_how_many_were_asked_for_and_are_free(self):
        pool = pool_with(9, used=2)
        cause = "name both numbers, so that whoever reads the log knows what was missing"
        text = raised("7 of 9 are free", "allocate(8)", NoFreeBlocks, cause, POOL, pool.allocate, 8)
        expect(
            "7 of 9 are free, asked for 8",
            "the text",
            text,
            text if "8" in text and "7" in text else "8 and 7",
            cause,
            POOL,
        )


class TestFree:
    """Exercise 3: BlockPool.free."""

    def test_the_last_block_given_back_is_handed_out_first(self):
        pool = pool_with(4, used=3)
        pool.free([0, 2])
        cause = "append them in the order given, to the end of `free_blocks`: pop() takes the last"
        where = "blocks 0, 1, 2 of 4 are out; 0 and 2 come back"
        expect(where, "free_blocks", numbers(pool.free_blocks), "3 0 2", cause, POOL)

    def test_what_comes_back_is_free(self):
        pool = pool_with(4, used=3)
        pool.free([2, 0])
        check_pool(pool, [request(4, [1])], "blocks 0, 1, 2 of 4 are out; 2 and 0 come back", POOL)

    def test_an_iterator_is_walked_only_once(self):
        pool = pool_with(4, used=3)
        cause = "`blocks` may be an iterator, empty after one walk: make a list of it first"
        try:
            pool.free(reversed([0, 1, 2]))
        except TypeError as error:
            mismatch("reversed([0, 1, 2]) comes back", "free() raised", f"TypeError: {error}", "no error", cause, POOL)
        expect("reversed([0, 1, 2]) comes back", "num_free", pool.num_free, 4, cause, POOL)
        check_pool(pool, [], "reversed([0, 1, 2]) comes back", POOL)

    def refused(self, blocks: list[int], cause: str, used: int = 3) -> str:
        """The error for a bad list, of a pool of 4 whose first `used` blocks are out; nothing may have changed."""
        __tracebackhide__ = True
        pool = pool_with(4, used)
        where = f"blocks {numbers(range(used))} of 4 are out; free({blocks})"
        text = raised(where, "free() returned", BlockError, cause, POOL, pool.free, blocks)
        cause = "all or none: look at every block before you change anything"
        expect(where, "free blocks after it", numbers(pool.free_blocks), numbers(range(used, 4)), cause, POOL)
        check_pool(pool, [request(4 * used, range(used))], where, POOL)
        return text

    def test_a_block_that_is_free_already_is_refused(self):
        cause = "block 3 is free: handed out twice it would have two owners, so freeing it again has to raise"
        text = self.refused([3], cause)
        expect("free([3])", "the text", text, text if "3" in text else "the block's number, 3", cause, POOL)

    @pytest.mark.parametrize("block", (4, -1, 1000))
    def test_a_block_of_another_pool_is_refused(self, block):
        cause = f"this pool has blocks 0 to 3: {block} was never in it (and is_free[-1] is the last block, not an error)"
        text = self.refused([block], cause, used=4)
        expect(f"free([{block}])", "the text", text, text if str(block) in text else f"{block}", cause, POOL)

    def test_the_same_block_twice_in_one_list_is_refused(self):
        self.refused([1, 1], "it is not free yet when you look at it the second time: remember what you have seen")

    @pytest.mark.parametrize("blocks", ([0, 1, 3], [0, 9], [2, 1, 2]))
    def test_one_bad_block_and_the_whole_list_stays_out(self, blocks):
        self.refused(blocks, "the list has a bad block: raise BlockError")

    def test_nothing_comes_back_from_an_empty_list(self):
        pool = pool_with(4, used=3)
        pool.free([])
        check_pool(pool, [request(12, [0, 1, 2])], "free([])", POOL)


class TestMissing:
    """Exercise 4: BlockPool.missing."""

    def check(self, stored: int, held: int, tokens: int, want: int, cause: str, known: int = 0, size: int = 4) -> None:
        __tracebackhide__ = True
        one = request(stored, range(held), known)
        where = f"{stored} tokens stored in {held} blocks of {size}, {tokens} to come"
        got = BlockPool(100, size).missing(one, tokens)
        expect(where, f"missing(request, {tokens})", got, want, cause, GROW)

    def test_a_prompt_needs_all_its_blocks(self):
        self.check(0, 0, 6, 2, "ceil(6 / 4), and the table is empty")

    def test_what_is_stored_counts_too(self):
        self.check(6, 2, 6, 1, "12 tokens will be stored: 3 blocks, 2 are in the table; round up once, after adding")

    def test_blocks_that_it_holds_are_not_missing(self):
        self.check(5, 2, 1, 0, "6 tokens need 2 blocks and it holds 2: take away what is in its table")

    def test_the_token_that_fills_a_block_needs_none(self):
        cause = "3 stored, the fourth fills the block: count stored tokens, not known ones, and not the remainder of 4"
        self.check(3, 1, 1, 0, cause)

    def test_the_token_after_a_full_block_opens_one(self):
        cause = "4 stored, the fifth has no place: ceil((4 + 1) / 4) blocks, it holds 1"
        self.check(4, 1, 1, 1, cause)

    def test_a_token_that_is_known_and_not_stored_needs_no_place_yet(self):
        cause = "num_tokens counts what is known; blocks hold what is stored: start from num_computed_tokens"
        self.check(4, 1, 4, 1, cause, known=12)

    def test_with_blocks_of_one_token_every_token_opens_one(self):
        self.check(3, 3, 1, 1, "with B = 1 a rule that looks for a remainder of 1 never holds", size=1)

    def test_a_table_with_room_to_spare_lacks_none(self):
        got = BlockPool(100, 4).missing(request(1, range(3)), 1)
        where = "1 token stored, 3 blocks held, 1 token to come"
        text = got if isinstance(got, int) and got <= 0 else "0, or less"
        expect(where, "missing(request, 1)", got, text, "it lacks nothing", GROW)

    @given(st.integers(0, 60), st.integers(0, 40), st.integers(1, 9))
    def test_with_what_it_lacks_the_tokens_fit_exactly(self, stored, tokens, size):
        held = -(-stored // size)
        got = BlockPool(100, size).missing(request(stored, range(held)), tokens)
        slots = (held + got) * size
        where = f"{stored} tokens stored in {held} blocks of {size}, {tokens} to come"
        ok = stored + tokens <= slots < stored + tokens + size
        text = f"{got}, so {slots} slots for {stored + tokens} tokens"
        expect(where, "missing()", text, text if ok else "just enough slots", "ceil((stored + new) / B) - held", GROW)


class TestGrow:
    """Exercise 5: BlockPool.grow."""

    def test_new_blocks_go_to_the_end_of_the_table(self):
        pool, a = pool_with(6, used=3), request(8, [2, 0])
        pool.grow(a, 5)
        cause = "the table is in the order of the tokens: append, and keep what is there, for it holds stored KV"
        expect("A has 8 tokens in blocks 2 and 0, 5 to come", "A's table", numbers(a.blocks), "2 0 3 4", cause, GROW)
        check_pool(pool, [a, request(4, [1], name="B")], "A has 8 tokens in blocks 2 and 0, 5 to come", GROW)

    def test_a_prompt_gets_all_its_blocks_at_once(self):
        pool, a = pool_with(6), request(0)
        pool.grow(a, 9)
        expect(
            "a prompt of 9", "A's table", numbers(a.blocks), "0 1 2", "allocate all that is missing, not one block", GROW
        )

    def test_a_request_with_room_gets_none(self):
        pool, a = pool_with(6, used=2), request(5, [0, 1])
        pool.grow(a, 3)
        cause = "tokens 6, 7 and 8 fit into block 1: nothing is missing, so nothing is allocated"
        expect("A has 5 tokens in 2 blocks of 4, 3 to come", "A's table", numbers(a.blocks), "0 1", cause, GROW)
        expect("A has 5 tokens in 2 blocks of 4, 3 to come", "free blocks", pool.num_free, 4, cause, GROW)

    def test_a_table_never_shrinks(self):
        pool, a = pool_with(6, used=3), request(1, [0, 1, 2])
        pool.grow(a, 1)
        cause = "missing was -2 and went to allocate: ask only when it is more than 0"
        expect("A has 1 token, 3 blocks, 1 to come", "num_free", pool.num_free, 3, cause, GROW)
        cause = "less than 0 missing means room to spare: leave it alone"
        expect("A has 1 token, 3 blocks, 1 to come", "A's table", numbers(a.blocks), "0 1 2", cause, GROW)
        check_pool(pool, [a], "A has 1 token, 3 blocks, 1 to come", GROW)

    def test_too_few_free_blocks_change_nothing(self):
        pool, a = pool_with(4, used=3), request(4, [1])
        where = "1 of 4 blocks is free, A lacks 2"
        cause = "the pool hands out all or none: let its NoFreeBlocks through"
        raised(where, "grow() returned", NoFreeBlocks, cause, GROW, pool.grow, a, 5)
        expect(where, "A's table after it", numbers(a.blocks), "1", cause, GROW)
        expect(where, "free blocks after it", pool.num_free, 1, cause, GROW)

    def test_room_is_not_yet_kv(self):
        pool, a = pool_with(4), request(0)
        pool.grow(a, 6)
        cause = "grow makes room; the step that stores the tokens counts them"
        expect("a prompt of 6 got its blocks", "num_computed_tokens", a.num_computed_tokens, 0, cause, GROW)


class TestRelease:
    """Exercise 6: BlockPool.release."""

    def released(self) -> tuple[BlockPool, Request]:
        pool, a = pool_with(5, used=4), request(11, [0, 3, 1])
        pool.release(a)
        return pool, a

    WHERE = "A held blocks 0, 3, 1; B holds 2; A is released"

    def test_its_blocks_come_back(self):
        pool, a = self.released()
        cause = "a table dropped before the pool got its blocks is a leak: free them first"
        expect(self.WHERE, "free blocks", numbers(sorted(pool.free_blocks)), "0 1 3 4", cause, RELEASE)
        check_pool(pool, [a, request(4, [2], name="B")], self.WHERE, RELEASE)

    def test_the_tail_is_freed_first(self):
        pool, _ = self.released()
        cause = "free the table from its end: so its head lies on top, and a new request gets the same blocks in order"
        expect(self.WHERE, "free_blocks", numbers(pool.free_blocks), "4 1 3 0", cause, RELEASE)

    def test_its_table_is_empty(self):
        _, a = self.released()
        cause = "a table that still lists freed blocks is a second owner: of whoever gets them next"
        expect(self.WHERE, "A's table", numbers(a.blocks), "none", cause, RELEASE)

    def test_nothing_of_it_is_stored_any_more(self):
        _, a = self.released()
        cause = "its KV is gone with the blocks, so it is behind by everything it knows"
        expect(self.WHERE, "num_computed_tokens", a.num_computed_tokens, 0, cause, RELEASE)

    def test_a_second_release_gives_back_nothing(self):
        pool, a = self.released()
        cause = "an empty table frees nothing: release is safe at every exit"
        try:
            pool.release(a)
        except BlockError as error:
            mismatch(self.WHERE, "a second release() raised", error, "no error", cause, RELEASE)
        expect(self.WHERE, "free blocks", pool.num_free, 4, cause, RELEASE)

    def test_a_request_that_holds_nothing_may_be_released(self):
        pool, a = pool_with(3), request(0)
        pool.release(a)
        expect("A has no blocks", "free blocks", pool.num_free, 3, "nothing to free is no error", RELEASE)


class TestSlot:
    """Extension: slot(blocks, position, block_size)."""

    def check(self, position: int, want: tuple[int, int], cause: str, size: int = 4) -> None:
        __tracebackhide__ = True
        got = slot([5, 0, 7], position, size)
        expect(f"table 5 0 7, blocks of {size}", f"slot(table, {position}, {size})", got, want, cause, SLOT)

    def test_the_first_token_lies_at_the_start_of_the_first_block(self):
        self.check(0, (5, 0), "entry 0 of the table, offset 0: the entry's block, not its number")

    def test_the_last_token_of_a_block_and_the_first_of_the_next(self):
        self.check(3, (5, 3), "positions count from 0: 0 to 3 lie in the first block of 4")
        self.check(4, (0, 0), "position 4 is the first of the second block: 4 // 4 = 1, 4 % 4 = 0")

    def test_a_position_in_the_middle(self):
        self.check(10, (7, 2), "entry 10 // 4 = 2 of the table is block 7, offset 10 % 4 = 2")
        self.check(2, (7, 0), "blocks of 1: the entry is the position, the offset always 0", size=1)

    @pytest.mark.parametrize("position", (12, 13, 100, -1))
    def test_a_position_outside_the_table_is_an_error(self, position):
        cause = "no block holds it, and table[-1] is the last block, not an error: look before you index"
        text = raised(
            "table 5 0 7, blocks of 4", f"slot(table, {position}, 4)", BlockError, cause, SLOT, slot, [5, 0, 7], position, 4
        )
        expect("table 5 0 7", "the text", text, text if str(position) in text else f"{position} in it", cause, SLOT)

    @given(st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=6), st.integers(1, 9))
    def test_no_two_tokens_share_a_slot(self, blocks, size):
        places = [slot(blocks, position, size) for position in range(len(blocks) * size)]
        want = [(block, offset) for block in blocks for offset in range(size)]
        expect(
            f"table {blocks}, blocks of {size}", "the slots", places, want, "every slot of the table once, in order", SLOT
        )


CASES = {
    name: case for name, case in read_workloads(Path(__file__).parent / "data" / "field_cases.json") if name[:3] == "C11"
}


class TestTheBlockBoundary:
    """Field case C11, reported against several engines: tests/data/field_cases.json. One request, no scheduler."""

    @pytest.mark.parametrize("name", CASES)
    def test_a_block_is_opened_exactly_when_it_is_needed(self, name):
        case = CASES[name]
        config, (one, _) = case["config"], parse_request(case["requests"][0], 0)
        pool = BlockPool(config["num_blocks"], config["block_size"])
        want = case["expect"]["requests"][one.id]
        needed = blocks_needed(one.max_kv_slots, pool.block_size)
        where = f"{name}: prompt {len(one.prompt)}, {one.max_tokens} outputs, {pool.num_blocks} blocks of {pool.block_size}"
        cause = "it stores prompt + outputs - 1 tokens: the last one is never fed"
        fits = want["finish_reason"] == "length"
        expect(where, "it fits", needed <= pool.num_blocks, fits, cause, GROW)
        if not fits:
            raised(where, "grow() returned", NoFreeBlocks, "the pool is too small", GROW, pool.grow, one, one.max_kv_slots)
            return
        free = []
        for step in range(one.max_tokens):
            n = len(one.prompt) if step == 0 else 1
            lacks, there = pool.missing(one, n), pool.num_free
            cause = "the pool holds all that it ever stores: a block asked for too early evicts somebody for nothing"
            expect(f"{where}, step {step}", "missing() <= num_free", lacks <= there, True, cause, GROW)
            pool.grow(one, n)
            one.num_computed_tokens += n
            cause = "opened too late: this step has no place to write"
            room = len(one.blocks) * pool.block_size
            expect(f"{where}, step {step}", "room >= stored", room >= one.num_computed_tokens, True, cause, GROW)
            if step == one.max_tokens - 1:
                pool.release(one)
            free.append(pool.num_free)
        cause = "a block more only when the one before it is full, and all of them back at the end"
        steps = [row["free_blocks"] for row in case["expect"].get("schedule", [])] or free
        expect(where, "free blocks after each step", free, steps, cause, GROW)
        expect(where, "free blocks at the end", pool.num_free, case["expect"]["free_blocks_at_end"], cause, GROW)

    def test_blocks_of_4_open_at_tokens_1_5_and_9(self):
        pool, one, opened = BlockPool(9, 4), request(0), []
        for token in range(1, 10):
            if pool.missing(one, 1) > 0:
                opened.append(token)
            pool.grow(one, 1)
            one.num_computed_tokens += 1
        cause = "storing token 1, 5, 9 … opens a block; 4 and 8 fill one"
        expect("one token a step", "a block was missing at tokens", numbers(opened), "1 5 9", cause, GROW)


class TestThePool:
    """Everything together."""

    def test_a_finished_request_s_blocks_go_to_the_next_in_the_same_order(self):
        pool, a, b = BlockPool(8, 4), request(0), request(0, name="B")
        pool.grow(a, 10)
        before = numbers(a.blocks)
        pool.release(a)
        pool.grow(b, 10)
        expect("A gave its blocks back, B needs as many", "B's table", numbers(b.blocks), before, "tail first", RELEASE)

    @given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10**6))
    def test_whatever_comes_and_goes_each_block_has_one_place(self, num_blocks, size, seed):
        rng, pool = Random(seed), BlockPool(num_blocks, size)
        requests = [request(0, name=name) for name in "ABCD"]
        for turn in range(30):
            one, tokens = rng.choice(requests), rng.randint(1, 2 * size)
            where = f"{num_blocks} blocks of {size}, turn {turn}"
            if rng.random() < 0.3:
                pool.release(one)
            elif pool.missing(one, tokens) > pool.num_free:
                cause = "missing() is more than num_free: grow has nothing to give"
                raised(where, "grow() returned", NoFreeBlocks, cause, GROW, pool.grow, one, tokens)
            else:
                pool.grow(one, tokens)
                one.num_computed_tokens += tokens
            check_pool(pool, requests, where, POOL)
            for other in requests:
                room, stored = len(other.blocks) * size, other.num_computed_tokens
                cause = "room for what is stored, and less than a block to spare"
                ok = stored <= room < stored + size
                text = f"{room} slots for {stored} tokens"
                expect(where, other.id, text, text if ok else "less than a block to spare", cause, GROW)

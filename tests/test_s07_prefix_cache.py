"""s07: names for blocks, and a pool that shares them. Exercise by exercise, then vLLM's rules in small numbers, then at random."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.errors import BlockError, NoFreeBlocks
from kit.prefixes import chats, enough, hit_rate, prompts_of
from s05_paged_blocks import blocks_needed
from s07_prefix_cache import PrefixPool, block_hash, chain_start, hash_chain, serve
from support import expect, mismatch, request

NAME = "s07_prefix_cache/A name for a block"
HIT = "s07_prefix_cache/The longest hit"
OWN = "s07_prefix_cache/Several owners"
ORDER = "s07_prefix_cache/Who is evicted"
ONCE = "s07_prefix_cache/Counted once"
SALT = "s07_prefix_cache/Strangers"


def pool_with(num_blocks: int = 8, names: dict[int, str] | None = None, owners: dict[int, int] | None = None) -> PrefixPool:
    """A pool of blocks of 4 in which some blocks have names (registered in this order) and some have owners."""
    pool = PrefixPool(num_blocks, 4)
    for block, name in (names or {}).items():
        pool.names[block] = name.encode()
        pool.holders.setdefault(name.encode(), {})[block] = None
    for block, count in (owners or {}).items():
        pool.ref_count[block] = count
        del pool.free_queue[block]
    return pool


def names(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def queue(pool: PrefixPool) -> list[int]:
    return list(pool.free_queue)


def refuses(where: str, call: str, kind: type[Exception], cause: str, see: str, function, *args) -> None:
    """Fail unless the call raises an error of this kind."""
    __tracebackhide__ = True
    try:
        got = function(*args)
    except kind:
        return
    except (KeyError, IndexError, NoFreeBlocks, BlockError) as error:
        got = f"{type(error).__name__}: {error}"
    mismatch(where, call, got, kind.__name__, cause, see)


def works(where: str, call: str, want, cause: str, see: str, function, *args) -> None:
    """Fail unless the call returns `want`; what it raises is shown in its place."""
    __tracebackhide__ = True
    try:
        got = function(*args)
    except (KeyError, IndexError, NoFreeBlocks, BlockError) as error:
        got = f"{type(error).__name__}: {error}"
    expect(where, call, got, want, cause, see)


def same_names(where: str, call: str, got: Sequence[bytes], want: Sequence[bytes], cause: str) -> None:
    """Compares names in full and shows six digits of a digest."""
    __tracebackhide__ = True
    if got != want:
        short = ([one.hex()[:6] if len(one) == 32 else one.decode() for one in chain] for chain in (got, want))
        mismatch(where, call, *short, cause, NAME)


class TestHashChain:
    """Exercise 1: hash_chain(tokens, block_size, salt, known)."""

    def test_one_name_for_each_full_block(self):
        got = [len(hash_chain(range(n), 4)) for n in (0, 1, 3, 4, 5, 7, 8, 9)]
        cause = "only full blocks have a name: the last one still changes while it fills"
        expect("prompts of 0 1 3 4 5 7 8 9 tokens, blocks of 4", "names", got, [0, 0, 0, 1, 1, 1, 2, 2], cause, NAME)

    def test_the_first_parent_is_the_start_of_the_chain(self):
        got = hash_chain([1, 2, 3, 4, 5], 4)
        cause = "the first name is block_hash(chain_start(salt), its tokens)"
        same_names("tokens 1 2 3 4 5, blocks of 4", "hash_chain()", got, [block_hash(chain_start(), [1, 2, 3, 4])], cause)

    def test_every_name_is_made_of_the_one_before(self):
        first = block_hash(chain_start(), [1, 2])
        want = [first, block_hash(first, [3, 4])]
        cause = "the parent of a block is the name of the block before it"
        same_names("tokens 1 2 3 4, blocks of 2", "hash_chain()", hash_chain([1, 2, 3, 4], 2), want, cause)

    def test_equal_tokens_behind_another_beginning_have_another_name(self):
        same = hash_chain([1, 2, 7, 8], 2)[1] == hash_chain([5, 6, 7, 8], 2)[1]
        cause = "KV depends on all tokens before it: put the parent's name into the hash"
        expect("7 8 behind 1 2, and behind 5 6", "their names are equal", same, False, cause, NAME)

    def test_the_same_tokens_twice_in_one_prompt_have_two_names(self):
        first, second = hash_chain([7, 8, 7, 8], 2)
        cause = "a block's place is part of its KV: the parent tells the first 7 8 from the second"
        expect("tokens 7 8 7 8, blocks of 2", "names are equal", first == second, False, cause, NAME)

    def test_another_salt_shares_no_block(self):
        mine, yours = (hash_chain(range(8), 4, salt) for salt in ("mine", "yours"))
        cause = "the salt goes into chain_start, and through the first name into all others"
        expect("one prompt, two salts", "names in common", len({*mine} & {*yours}), 0, cause, SALT)

    def test_the_same_salt_shares_all(self):
        cause = "a salt separates tenants: two requests of one tenant have the same names"
        same = hash_chain(range(8), 4, "mine") == hash_chain(range(8), 4, "mine")
        expect("one prompt twice, one salt", "names are equal", same, True, cause, SALT)

    def test_known_names_are_gone_on_from(self):
        known = [b"one", b"two"]
        want = [*known, block_hash(b"two", [4, 5])]
        cause = "start at the first block without a name; the last known name is its parent"
        same_names("six tokens, two names known", "hash_chain()", hash_chain(range(6), 2, known=known), want, cause)
        same_names("six tokens, two names known", "known afterwards", known, [b"one", b"two"], "make a list of your own")

    @given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12), st.integers(1, 4))
    def test_names_are_equal_as_far_as_the_tokens_are(self, a, b, size):
        common = 0
        while common < min(len(a), len(b)) and a[common] == b[common]:
            common += 1
        one, other = hash_chain(a, size), hash_chain(b, size)
        got = sum(x == y for x, y in zip(one, other))
        cause = "a name stands for all tokens up to the end of its block, no more and no less"
        expect(f"{a} and {b}, blocks of {size}", "names in common", got, common // size, cause, NAME)


class TestRegister:
    """Exercise 2: PrefixPool.register."""

    def test_a_full_block_gets_its_name(self):
        pool = pool_with(owners={0: 1, 1: 1})
        pool.register([0, 1], names("ab"))
        expect("blocks 0 and 1 are full", "names", pool.names[:3], [b"a", b"b", None], "note each name in `names`", HIT)
        want = {b"a": {0: None}, b"b": {1: None}}
        expect("blocks 0 and 1 are full", "holders", pool.holders, want, "a look-up goes from the name to the block", HIT)

    def test_the_part_filled_last_block_gets_none(self):
        pool = pool_with(owners={0: 1, 1: 1, 2: 1})
        pool.register([0, 1, 2], names("ab"))
        cause = "a table may be longer than its names: what isn't full has none"
        expect("three blocks, two of them full", "names", pool.names[:3], [b"a", b"b", None], cause, HIT)

    def test_a_hit_keeps_its_name_and_its_place(self):
        pool = pool_with(names={5: "a", 2: "a"}, owners={2: 1, 3: 1})
        pool.register([2, 3], names("ab"))
        cause = "block 2 was registered before: leave it as it is, and name the others"
        expect("table 2 3, block 2 is named", "holders of a", list(pool.holders[b"a"]), [5, 2], cause, HIT)
        expect("table 2 3, block 2 is named", "name of 3", pool.names[3], b"b", cause, HIT)

    def test_equal_blocks_are_not_merged(self):
        pool = pool_with(names={0: "a"}, owners={0: 1, 4: 1})
        pool.register([4], names("a"))
        cause = (
            "two requests computed the same block at the same time: both keep theirs, the first registered stands in front"
        )
        expect("blocks 0 and 4 hold the same tokens", "holders", list(pool.holders[b"a"]), [0, 4], cause, HIT)


class TestLookup:
    """Exercise 3: PrefixPool.lookup."""

    def check(self, pool, hashes: str, num_tokens: int, want: list[int], cause: str) -> None:
        __tracebackhide__ = True
        where = f"{num_tokens} tokens with names {' '.join(hashes)}, blocks of 4"
        expect(where, "lookup()", pool.lookup(names(hashes), num_tokens), want, cause, HIT)

    def test_all_blocks_from_the_start(self):
        self.check(pool_with(names={3: "a", 1: "b"}), "ab", 11, [3, 1], "both are held: 3, then 1")

    def test_nothing_known_is_no_hit(self):
        self.check(pool_with(names={3: "a"}), "xy", 11, [], "nobody holds x: an empty list, no error")

    def test_it_stops_at_the_first_hole(self):
        cause = "b is gone, so c's KV is of no use: the tokens before it are not stored. Stop, don't skip"
        self.check(pool_with(names={0: "a", 2: "c"}), "abc", 13, [0], cause)

    def test_a_full_hit_still_computes_one_token(self):
        cause = "8 of 8 tokens hit leave nothing to compute and nothing to sample from: at most (8 - 1) // 4 blocks"
        self.check(pool_with(names={0: "a", 1: "b"}), "ab", 8, [0], cause)

    def test_one_token_more_and_the_last_block_counts(self):
        cause = "the ninth token is computed, so two blocks may be hit: (9 - 1) // 4 = 2"
        self.check(pool_with(names={0: "a", 1: "b"}), "ab", 9, [0, 1], cause)

    def test_a_single_block_can_not_be_hit_by_itself(self):
        self.check(pool_with(names={0: "a"}), "a", 4, [], "(4 - 1) // 4 = 0 blocks: its four tokens are computed again")

    def test_of_equal_blocks_the_first_registered(self):
        cause = "blocks 6 and 2 hold the same; 6 was registered first"
        self.check(pool_with(names={6: "a", 2: "a"}), "ab", 9, [6], cause)

    def test_looking_changes_nothing(self):
        pool = pool_with(names={0: "a", 1: "b"})
        pool.lookup(names("abc"), 13)
        got = queue(pool), pool.ref_count, len(pool.holders)
        cause = "a look-up only looks: who looks may still not be admitted. claim() takes the blocks"
        expect("two cached blocks, all free", "pool", got, (list(range(8)), [0] * 8, 2), cause, HIT)


class TestAllocate:
    """Exercise 4: PrefixPool.allocate."""

    def test_the_front_of_the_queue_is_taken_first(self):
        pool = pool_with(4)
        expect("free queue 0 1 2 3", "allocate(2)", pool.allocate(2), [0, 1], "the front has been free for longest", ORDER)
        expect("0 and 1 are taken", "free queue", queue(pool), [2, 3], "who is taken leaves the queue", ORDER)

    def test_each_has_one_owner(self):
        pool = pool_with(3)
        pool.allocate(2)
        expect("two of three blocks are taken", "ref_count", pool.ref_count, [1, 1, 0], "its taker is its owner", OWN)

    def test_a_block_that_is_taken_loses_its_name(self):
        pool = pool_with(3, names={0: "a", 1: "b"})
        pool.allocate(1)
        cause = "its KV is about to be overwritten: forget() its name, or the next look-up reads another request's KV"
        expect("block 0 was cached as a", "names", pool.names, [None, b"b", None], cause, ORDER)
        expect("block 0 was cached as a", "holders", pool.holders, {b"b": {1: None}}, cause, ORDER)

    def test_its_twin_can_still_be_hit(self):
        pool = pool_with(4, names={0: "a", 2: "a"})
        pool.allocate(1)
        cause = "0 and 2 held the same: 2 still does. Take away one block's name, not the name"
        expect("0 is taken", "holders", pool.holders, {b"a": {2: None}}, cause, ORDER)

    def test_too_few_is_an_error_and_nothing_is_handed_out(self):
        pool = pool_with(3, names={0: "a"}, owners={2: 1})
        cause = "ask before you take"
        refuses("two of three blocks are free", "allocate(3)", NoFreeBlocks, cause, ORDER, pool.allocate, 3)
        got = queue(pool), pool.names[0], pool.ref_count
        expect("allocate(3) was refused", "pool", got, ([0, 1], b"a", [0, 0, 1]), "all or nothing", ORDER)

    def test_none_wanted_is_none(self):
        expect("an empty wish", "allocate(0)", pool_with(2).allocate(0), [], "no blocks, no error", ORDER)


class TestClaim:
    """Exercise 5: PrefixPool.claim."""

    def test_the_hit_stands_in_front_of_the_new(self):
        pool = pool_with(6, names={4: "a", 3: "b"})
        cause = "a block table is in the order of the tokens"
        works("hit 4 3, two new ones", "claim()", [4, 3, 0, 1], cause, OWN, pool.claim, [4, 3], 2)

    def test_a_hit_that_is_free_leaves_the_free_queue(self):
        pool = pool_with(4, names={2: "a"})
        pool.claim([2], 1)
        expect("2 was cached and free", "free queue", queue(pool), [1, 3], "touch() it: nobody may take it now", OWN)

    def test_a_hit_that_somebody_owns_has_one_owner_more(self):
        pool = pool_with(4, names={2: "a"}, owners={2: 1})
        pool.claim([2], 1)
        expect("2 has an owner", "ref_count", pool.ref_count, [1, 0, 2, 0], "touch() counts owners", OWN)

    def test_the_hit_is_touched_before_new_blocks_are_taken(self):
        pool = pool_with(4, names={0: "a"})
        cause = "the hit, 0, stood at the front: taken as a new block it would be in the table twice. Touch, then allocate"
        works("free queue 0 1 2 3, hit 0, two new ones", "claim()", [0, 1, 2], cause, ONCE, pool.claim, [0], 2)

    def test_an_idle_hit_is_counted_once(self):
        pool = pool_with(4, names={0: "a", 1: "b"}, owners={3: 1})
        cause = "3 are free, and 2 of them are the hit itself: 2 new and 2 idle hits need 4"
        refuses("hit 0 1, two new ones, 3 free", "claim()", NoFreeBlocks, cause, ONCE, pool.claim, [0, 1], 2)

    def test_refused_means_nothing_has_changed(self):
        pool = pool_with(4, names={0: "a", 1: "b"}, owners={3: 1})
        refuses("hit 0 1, two new ones, 3 free", "claim()", NoFreeBlocks, "2 + 2 > 3", ONCE, pool.claim, [0, 1], 2)
        got = queue(pool), pool.ref_count, len(pool.holders)
        cause = "ask before you touch: the request stays in the queue and owns nothing"
        expect("claim() was refused", "pool", got, ([0, 1, 2], [0, 0, 0, 1], 2), cause, ONCE)

    def test_an_owned_hit_costs_nothing(self):
        pool = pool_with(4, names={0: "a", 1: "b"}, owners={0: 1, 1: 1, 3: 1})
        cause = "0 and 1 have an owner, so they are not in the free queue: only the new block is taken from it"
        works("hit 0 1 with an owner, 1 free", "claim()", [0, 1, 2], cause, ONCE, pool.claim, [0, 1], 1)


class TestFree:
    """Exercise 6: PrefixPool.free."""

    def freed(self, blocks: Sequence[int], named: str = "", owners: int = 1):
        """Blocks 0 1 2 … of six have `owners`, the first of them names; free these."""
        pool = pool_with(6, dict(enumerate(named)), {block: owners for block in range(max(blocks) + 1)})
        pool.free(blocks)
        return pool

    def test_a_named_block_goes_to_the_back(self):
        cause = "it may be hit again: who was freed before it is evicted before it"
        expect("0 is cached, 1 to 5 are free", "free queue", queue(self.freed([0], "a")), [1, 2, 3, 4, 5, 0], cause, ORDER)

    def test_a_nameless_block_goes_to_the_front(self):
        cause = "nobody can ever hit it: it is taken before any cached block"
        expect("0 has no name", "free queue", queue(self.freed([0])), [0, 1, 2, 3, 4, 5], cause, ORDER)

    def test_the_tail_is_evicted_first(self):
        cause = "the order given is the order of eviction: block 1 is of use only behind block 0"
        expect("freed as 1 0", "free queue", queue(self.freed([1, 0], "ab")), [2, 3, 4, 5, 1, 0], cause, ORDER)

    def test_nameless_ones_keep_their_order(self):
        cause = "they go to the front as a group: the first of them is the next to be taken"
        expect("freed as 2 1 0", "free queue", queue(self.freed([2, 1, 0])), [2, 1, 0, 3, 4, 5], cause, ORDER)

    def test_a_request_that_ends_splits(self):
        pool = self.freed([3, 2, 1, 0], "ab")
        cause = "without a name to the front, 3 2; with one to the back, 1 0"
        expect("freed as 3 2 1 0; 0 and 1 are cached", "free queue", queue(pool), [3, 2, 4, 5, 1, 0], cause, ORDER)

    def test_a_block_with_another_owner_stays(self):
        pool = self.freed([1, 0], "ab", owners=2)
        cause = "one owner less, and one is left: it comes free with the last of them"
        expect("0 and 1 have two owners", "ref_count", pool.ref_count[:2], [1, 1], cause, OWN)
        expect("0 and 1 have two owners", "free queue", queue(pool), [2, 3, 4, 5], cause, OWN)

    def test_it_keeps_its_name(self):
        pool = self.freed([0], "a")
        cause = "a free block is remembered until somebody takes it: that is the whole cache"
        expect("0 is cached and comes free", "names", pool.names[0], b"a", cause, ORDER)

    def test_one_free_too_many_is_an_error(self):
        pool = self.freed([0], "a")
        refuses("0 is free already", "free([0])", BlockError, "nobody owns it any more", OWN, pool.free, [0])

    def test_an_iterator_is_walked_only_once(self):
        pool = pool_with(4, owners={0: 1, 1: 1, 2: 1})
        cause = "`blocks` may be an iterator, empty after one walk: make a list of it first"
        where = "reversed([0, 1, 2]) comes back"
        try:
            pool.free(reversed([0, 1, 2]))
        except TypeError as error:
            mismatch(where, "free() raised", f"TypeError: {error}", "no error", cause, OWN)
        expect(where, "ref_count", pool.ref_count, [0, 0, 0, 0], cause, OWN)
        expect(where, "num_free", pool.num_free, 4, cause, OWN)

    def test_a_refused_free_changes_nothing(self):
        pool = pool_with(4, {0: "a"}, {0: 1, 1: 1})
        for blocks, cause in (
            ([1, 0, 2], "2 is free already: nobody owns it"),
            ([1, 0, 1], "no table lists a block twice"),
        ):
            refuses("0 and 1 of four have an owner", f"free({blocks})", BlockError, cause, OWN, pool.free, blocks)
            got = pool.ref_count, queue(pool)
            cause = "look at all of them before you take the first owner off"
            expect(f"free({blocks}) was refused", "ref_count, free queue", got, ([1, 1, 0, 0], [2, 3]), cause, OWN)

    @pytest.mark.parametrize("block", [-1, 6])
    def test_a_foreign_block_is_an_error(self, block):
        pool = pool_with(6, owners={0: 1, 5: 1})
        refuses(
            "a pool of blocks 0 to 5", f"free([{block}])", BlockError, "check the number first", OWN, pool.free, [block]
        )


class TestTheRules:
    """Everything together, in small numbers: what s14 will need."""

    def test_a_freed_prompt_is_hit(self):
        pool, chain = PrefixPool(4, 4), hash_chain(range(9), 4)
        got = [serve(pool, chain, 9), serve(pool, chain, 9)]
        cause = "registered, freed, looked up again: its two full blocks are still there"
        expect("one prompt of 9 tokens, twice", "(blocks hit, tokens computed)", got, [(0, 9), (2, 1)], cause, HIT)

    @pytest.mark.parametrize(("length", "want"), [(8, (1, 4)), (9, (2, 1))])
    def test_the_same_prompt_again_computes_at_least_one_token(self, length, want):
        pool, chain = PrefixPool(8, 4), hash_chain(range(length), 4)
        serve(pool, chain, length)
        cause = "(P - 1) // 4 blocks may be hit: 8 tokens hit 1 block and compute 4, 9 hit 2 and compute 1"
        expect(f"{length} tokens again", "(blocks hit, tokens computed)", serve(pool, chain, length), want, cause, HIT)

    def test_a_waiting_request_must_not_count_its_hit_as_room(self):
        pool = PrefixPool(4, 4)
        a, b = hash_chain(range(8), 4), hash_chain([*range(8), *range(50, 58)], 4)
        serve(pool, a, 8)
        c = pool.claim([], 1)
        hit = pool.lookup(b, 16)
        where = "4 blocks: A's two are cached and free, C has one; B hits both and needs two more"
        cause = "2 new ones and the 2 idle hits are 4, and 3 are free"
        refuses(where, "claim()", NoFreeBlocks, cause, ONCE, pool.claim, hit, 2)
        pool.free(c)
        expect("C has ended", "claim()", sorted(pool.claim(hit, 2)), [0, 1, 2, 3], "now all four are free", ONCE)

    def test_the_oldest_prompt_is_evicted_first_its_tail_before_its_head(self):
        pool = PrefixPool(4, 2)
        a, b = hash_chain([1, 2, 3, 4], 2), hash_chain([5, 6, 7, 8], 2)
        serve(pool, a, 4)
        serve(pool, b, 4)
        pool.allocate(1)
        got = len(pool.lookup(a, 9)), len(pool.lookup(b, 9))
        cause = "A is older, and its second block goes first: half of A can still be hit"
        expect("A, then B, then one block is needed", "blocks of A and B left", got, (1, 2), cause, ORDER)

    def test_a_hit_makes_a_prompt_young_again(self):
        pool = PrefixPool(6, 2)
        a, b = hash_chain(range(5), 2), hash_chain(range(10, 15), 2)
        serve(pool, a, 5)
        serve(pool, b, 5)
        serve(pool, a, 5)
        pool.allocate(4)
        got = len(pool.lookup(a, 5)), len(pool.lookup(b, 5))
        cause = "a touched block comes back at the end of the queue: B is the older one now"
        expect("A, B, A again, then four blocks are needed", "blocks of A and B left", got, (2, 0), cause, ORDER)

    def test_two_equal_prompts_of_one_step_share_what_is_registered(self):
        pool, chain = PrefixPool(8, 4), hash_chain(range(9), 4)
        a = pool.claim([], 3)
        pool.register(a, chain)
        hit = pool.lookup(chain, 9)
        cause = "A's blocks are registered when they are allocated, so B, admitted in the same step, shares them"
        expect("A and B, the same 9 tokens", "hit of B", hit, [0, 1], cause, HIT)
        b = pool.claim(hit, 1)
        pool.free(reversed(a))
        expect(
            "A has ended", "owners of B's blocks", [pool.ref_count[block] for block in b], [1, 1, 1], "B still runs", OWN
        )

    def test_nobody_hits_what_was_never_written(self):
        pool, chain = PrefixPool(4, 4), hash_chain(range(9), 4)
        table = pool.claim([], 3)
        pool.register(table, chain)
        pool.forget(table)
        pool.free(reversed(table))
        cause = "its step never ran and its blocks were forgotten: no name may be left in `names` or `holders`"
        expect("V was evicted before its step ran", "hit", pool.lookup(chain, 9), [], cause, HIT)
        expect(
            "V was evicted before its step ran", "free queue", queue(pool), [2, 1, 0, 3], "nameless: to the front", ORDER
        )

    def test_it_still_is_a_block_pool(self):
        pool, one = PrefixPool(4, 4), request("A", 6, 2)
        pool.grow(one, 6)
        got = one.blocks, pool.num_free, pool.missing(one, 9)
        cause = "grow() and release() of s05 work on allocate() and free()"
        expect("A grows to 6 tokens", "blocks, free, missing for 9", got, ([0, 1], 2, 1), cause, OWN)
        pool.release(one)
        expect("A is released", "blocks, free", (one.blocks, pool.num_free), ([], 4), cause, OWN)


class TestAtRandom:
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 14), st.booleans()), max_size=30), st.integers(4, 9))
    def test_blocks_are_neither_lost_nor_shared_by_strangers(self, actions, num_blocks):
        """Prompts come and go; each block remembers which tokens were written to it, and hits are compared with them."""
        pool, live = PrefixPool(num_blocks, 2), []
        written: dict[int, tuple[int, ...]] = {}
        for kind, length, end in actions:
            tokens = [kind % 2] * min(length, 4) + [kind] * (length - min(length, 4))
            chain = hash_chain(tokens, 2)
            hit = pool.lookup(chain, length)
            for i, block in enumerate(hit):
                got, want = written.get(block), tuple(tokens[: 2 * i + 2])
                cause = "a block that was taken again must lose its name, and a name must stand for all tokens before it"
                expect(f"a hit on block {block}", "it holds the KV of", got, want, cause, HIT)
            new = blocks_needed(length, 2) - len(hit)
            free = pool.num_free
            idle = sum(pool.ref_count[block] == 0 for block in hit)
            if new + idle > free:
                refuses(f"{free} free", "claim()", NoFreeBlocks, f"{new} new and {idle} idle", ONCE, pool.claim, hit, new)
            else:
                table = pool.claim(hit, new)
                expect("after claim()", "free", pool.num_free, free - new - idle, "each block counts once", ONCE)
                for i, block in enumerate(table):
                    written[block] = tuple(tokens[: 2 * i + 2])
                pool.register(table, chain)
                live.append(table)
            if end and live:
                pool.free(reversed(live.pop(0)))
            self.check(pool, live)

    def check(self, pool: PrefixPool, live: list[list[int]]) -> None:
        __tracebackhide__ = True
        owners = [sum(block in table for table in live) for block in range(pool.num_blocks)]
        expect("between two steps", "ref_count", pool.ref_count, owners, "one for each block table that lists it", OWN)
        idle = [block for block, count in enumerate(owners) if count == 0]
        expect("between two steps", "free queue", sorted(pool.free_queue), idle, "free is who has no owner", OWN)
        held = {block: name for name, blocks in pool.holders.items() for block in blocks}
        named = {block: name for block, name in enumerate(pool.names) if name is not None}
        expect("between two steps", "holders", held, named, "names and holders say the same", HIT)

    @given(st.integers(1, 3), st.sampled_from([60, 120, 250]))
    def test_a_larger_pool_never_hits_less(self, seed, size):
        prompts = prompts_of(chats(5, seed, turns=3), hash_chain, 64)
        rates = [hit_rate(PrefixPool(n, 64), prompts, serve)[0] for n in (size, 2 * size, enough(prompts, 64))]
        cause = "least recently used keeps what a smaller pool keeps, and more"
        expect(f"pools of {size}, {2 * size} and without end", "hit rates", rates, sorted(rates), cause, ORDER)


class TestHitRates:
    def test_hit_rates_of_generated_conversations(self):
        prompts = prompts_of(chats(30), hash_chain)
        got = [round(hit_rate(PrefixPool(n), prompts, serve)[0], 1) for n in (250, 500, enough(prompts, 16))]
        cause = "a wrong order of eviction shows here: free the tail first, take the front first"
        expect("30 conversations; 250 and 500 blocks, and no end", "hit %", got, [40.0, 55.6, 79.6], cause, ORDER)

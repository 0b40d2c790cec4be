"""s04: how much memory a request is given, where it lies, and what is left of the memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from s04_kv_memory import Buddy, FirstFit, Reservation, reserve, shares
from support import expect

SIZE = "s04_kv_memory/How large a piece"
FIT = "s04_kv_memory/First fit"
SHARES = "s04_kv_memory/Four kinds of slots"


def show(memory: FirstFit) -> str:
    """The holes as a message shows them: `4-5 9-11`, first to last slot."""
    return " ".join(f"{start}-{start + length - 1}" for start, length in memory.holes) or "none"


def refusal(function, *args):
    """What a call ends in: the name of its error, or `no error`."""
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__
    return "no error"


class TestReserve:
    """Exercise 1: reserve(policy, prompt, output, max_len)."""

    def check(self, policy, prompt, output, want, cause):
        where = f"policy {policy}, prompt {prompt}, output {output}, max_len 2048"
        expect(where, "reserve()", reserve(policy, prompt, output, 2048), want, cause, SIZE)

    def test_max_gives_the_whole_context(self):
        self.check("max", 10, 5, 2048, "any answer might become that long: max_len, whatever the prompt")

    def test_an_oracle_gives_what_will_be_needed(self):
        self.check("oracle", 10, 5, 15, "prompt and output, no more")

    def test_pow2_rounds_the_output_up(self):
        cause = "the *output* is rounded up to a power of two, 25 to 32; the prompt is known and is not rounded"
        self.check("pow2", 100, 25, 132, cause)

    @pytest.mark.parametrize(("output", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1024, 1024), (1025, 2048)])
    def test_a_power_of_two_stays_what_it_is(self, output, power):
        cause = "the smallest power of two that *holds* it: 4 stays 4, 5 becomes 8"
        self.check("pow2", 0, output, power, cause)

    def test_pow2_never_exceeds_the_context(self):
        self.check("pow2", 1000, 1030, 2048, "1000 + 2048 exceed the context: no request can ever use more than max_len")

    def test_what_is_longer_than_the_context_is_refused(self):
        for policy in ("max", "pow2", "oracle"):
            where, cause = f"policy {policy}, prompt 1500, max_len 2048", "1500 + 549 is one more than the context has"
            got = refusal(reserve, policy, 1500, 549, 2048)
            cause += ": raise BadConfig, under every policy and before the size is taken"
            expect(where, "reserve() of an output of 549", got, "BadConfig", cause, SIZE)
            got = refusal(reserve, policy, 1500, 548, 2048)
            expect(where, "reserve() of an output of 548", got, "no error", "1500 + 548 is the context: it fits", SIZE)

    def test_an_unknown_policy_is_refused(self):
        cause = "a policy that is none of the three must not fall through to one of them, or to None: raise BadConfig"
        expect("policy best", "reserve() ended in", refusal(reserve, "best", 10, 5, 2048), "BadConfig", cause, SIZE)

    @given(st.integers(1, 1000), st.integers(1, 1000))
    def test_what_is_given_is_enough_and_in_order(self, prompt, output):
        sizes = [reserve(policy, prompt, output, 2048) for policy in ("oracle", "pow2", "max")]
        ok = prompt + output == sizes[0] <= sizes[1] <= sizes[2] and sizes[1] < prompt + 2 * output
        cause = "oracle <= pow2 <= max, and a power of two is less than twice what it holds"
        expect(f"prompt {prompt}, output {output}", "(oracle, pow2, max)", (sizes, ok), (sizes, True), cause, SIZE)


class TestAllocate:
    """Exercise 2: FirstFit.allocate(size)."""

    def memory(self, *holes, slots=20):
        """A memory with just these holes; what lies between them is one piece each."""
        memory, at = FirstFit(slots), 0
        for start, length in [*holes, (slots, 0)]:
            if start > at:
                memory.used[at] = start - at
            at = start + length
        memory.holes = list(holes)
        return memory

    def test_pieces_lie_one_behind_the_other(self):
        memory = FirstFit(10)
        got = [memory.allocate(3), memory.allocate(4)]
        expect(
            "an empty memory of 10, pieces of 3 and 4",
            "starts",
            got,
            [0, 3],
            "the piece is the *beginning* of the hole",
            FIT,
        )
        expect("an empty memory of 10, pieces of 3 and 4", "holes", show(memory), "7-9", "what is left stays a hole", FIT)

    def test_the_first_hole_that_is_large_enough(self):
        memory = self.memory((2, 2), (6, 5), (14, 3))
        cause = "the first that is large enough, by start; the best fit would be 14, and that is another allocator"
        expect("holes 2-3, 6-10, 14-16", "allocate(3)", memory.allocate(3), 6, cause, FIT)
        expect(
            "3 slots from 6 are taken", "holes", show(memory), "2-3 9-10 14-16", "the rest stays in its place by start", FIT
        )

    def test_an_exact_fit_leaves_no_hole(self):
        memory = self.memory((2, 2), (6, 5))
        expect("holes 2-3, 6-10", "allocate(2)", memory.allocate(2), 2, "an exact fit is enough: >=, not >", FIT)
        expect("2-3 are taken", "holes", show(memory), "6-10", "a hole of length 0 is none: delete it", FIT)

    def test_it_is_none_when_no_hole_is_that_large(self):
        memory = self.memory((2, 2), (6, 5), (14, 3))
        cause = "10 slots are free, but not in a row: that is external fragmentation"
        expect("holes 2-3, 6-10, 14-16", "allocate(6)", memory.allocate(6), None, cause, FIT)
        expect("nothing was handed out", "holes", show(memory), "2-3 6-10 14-16", "a refusal changes nothing", FIT)

    def test_a_piece_is_written_down(self):
        memory = FirstFit(10)
        memory.allocate(3)
        memory.allocate(4)
        cause = "used[start] = size, or free() can't know how long the piece is"
        expect("pieces of 3 and 4", "used", memory.used, {0: 3, 3: 4}, cause, FIT)


class TestFree:
    """Exercise 3: FirstFit.free(start)."""

    def full(self, *sizes):
        memory = FirstFit(sum(sizes))
        at = 0
        for size in sizes:
            memory.used[at] = size
            at += size
        memory.holes = []
        return memory

    def check(self, sizes, order, want, cause):
        memory = self.full(*sizes)
        for start in order:
            memory.free(start)
        expect(f"pieces of {sizes}, freed at {order}", "holes", show(memory), want, cause, FIT)
        left = sum(memory.used.values())
        expect(
            f"pieces of {sizes}, freed at {order}",
            "slots in use",
            left,
            sum(sizes) - memory.num_free,
            "no longer used",
            FIT,
        )

    def test_a_piece_becomes_a_hole(self):
        self.check((3, 4, 5), (3,), "3-6", "4 slots from 3 on")

    def test_holes_stand_in_the_order_of_their_starts(self):
        for order in (0, 4), (4, 0):
            cause = "first fit means the first by *start*: put the hole in its place"
            self.check((3, 1, 5, 1), order, "0-2 4-8", cause)

    def test_it_joins_the_hole_behind_it(self):
        self.check((3, 4, 5), (3, 0), "0-6", "0-2 and 3-6 touch: they are one hole of 7, or a piece of 7 would find none")

    def test_it_joins_the_hole_before_it(self):
        self.check((3, 4, 5), (0, 3), "0-6", "0-2 and 3-6 touch: they are one hole of 7, or a piece of 7 would find none")

    def test_it_joins_both(self):
        self.check((3, 4, 5), (0, 7, 3), "0-11", "the hole before and the hole behind become one with it")

    def test_what_does_not_touch_stays_apart(self):
        self.check((3, 1, 5), (4, 0), "0-2 4-8", "slot 3 is in use between them")

    def test_a_piece_is_freed_once(self):
        memory = self.full(3, 4)
        memory.free(3)
        for start in (3, 1, 99):
            cause = "no piece starts there (any longer): look into `used` first, and raise BlockError"
            where = f"pieces at 0-2 and 3-6, freed at 3, then at {start}"
            expect(where, "free() ended in", refusal(memory.free, start), "BlockError", cause, FIT)
        expect("freed at 3, then again, and at 1 and 99", "holes", show(memory), "3-6", "a refusal changes nothing", FIT)

    @given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), max_size=40))
    def test_no_slot_is_lost_or_has_two_owners(self, moves):
        memory = FirstFit(40)
        for size, victim in moves:
            if victim < len(memory.used) and size % 2:
                memory.free(sorted(memory.used)[victim])
            else:
                memory.allocate(size)
            pieces = sorted([*memory.used.items(), *memory.holes])
            ends = [start + length for start, length in pieces]
            whole = [start for start, _ in pieces] == [0, *ends[:-1]] and ends[-1] == 40
            cause = "pieces and holes together cover every slot once, and the holes are sorted by start"
            seen = f"pieces {memory.used}, holes {show(memory)}"
            expect(
                f"after {moves}", "memory", (seen, whole and memory.holes == sorted(memory.holes)), (seen, True), cause, FIT
            )
            touching = [b for a, b in zip(memory.holes, memory.holes[1:]) if sum(a) == b[0]]
            expect(f"after {moves}", "holes that touch", touching, [], "holes that touch are one hole", FIT)

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.randoms(use_true_random=False))
    def test_an_emptied_memory_is_one_hole_again(self, sizes, random):
        memory = FirstFit(120)
        starts = [memory.allocate(size) for size in sizes]
        random.shuffle(starts)
        for start in starts:
            memory.free(start)
        expect(f"pieces of {sizes}, all freed", "holes", show(memory), "0-119", "every neighbour was joined", FIT)

    @given(st.lists(st.integers(1, 9), max_size=40))
    def test_filled_from_empty_it_holds_all_that_a_buddy_system_holds(self, sizes):
        first, buddy = FirstFit(64), Buddy(64)
        for size in sizes:
            a, b = first.allocate(size), buddy.allocate(size)
            cause = "first fit rounds nothing up: filled from empty, it holds all that a buddy system holds"
            expect(f"pieces of {sizes}", "first fit has room", a is not None or b is None, True, cause, FIT)
            if a is None:
                return
        first_free = first.num_free
        expect("filled from empty", "free slots at least", first_free >= buddy.num_free, True, "nothing is rounded up", FIT)


class TestShares:
    """Exercise 4: shares(running, num_slots)."""

    def check(self, running, num_slots, want, cause):
        got = tuple(round(share * num_slots, 6) for share in shares(running, num_slots))
        where = f"{num_slots} slots; " + "; ".join(map(str, running))
        expect(where, "(tokens, reserved, internal, external) in slots", got, want, cause, SHARES)

    def test_half_way_through_an_answer(self):
        cause = "4 prompt + 3 made hold tokens, 5 are still to be made, 16 - 4 - 8 will never be used, 4 belong to nobody"
        self.check([Reservation(4, 8, 16, 0, made=3)], 20, (7, 5, 4, 4), cause)

    def test_the_prompt_is_stored_from_the_start(self):
        self.check([Reservation(4, 8, 12, 0)], 12, (4, 8, 0, 0), "the prompt's tokens are there before the first is made")

    def test_with_its_last_token_nothing_is_reserved(self):
        self.check([Reservation(4, 8, 16, 0, made=8)], 16, (12, 0, 4, 0), "all 8 are made: none is still to come")

    def test_requests_add_up(self):
        running = [Reservation(4, 8, 16, 0, made=3), Reservation(2, 2, 4, 16, made=1)]
        self.check(running, 32, (10, 6, 4, 12), "sum over all that run, then divide by the slots of the *memory*")

    def test_an_empty_memory_is_all_external(self):
        self.check([], 8, (0, 0, 0, 8), "nobody was given anything")

    def test_they_are_shares_not_slots(self):
        got = shares([Reservation(4, 8, 16, 0, made=3)], 20)
        want = (0.35, 0.25, 0.2, 0.2)
        expect(
            "20 slots, 7 hold tokens",
            "shares()",
            tuple(round(share, 9) for share in got),
            want,
            "divide by num_slots",
            SHARES,
        )

    @given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50)), max_size=8))
    def test_they_add_up_to_one(self, sizes):
        running = [Reservation(p, o, p + o + more, 0, made=o // 2) for p, o, more in sizes]
        total = round(sum(shares(running, 1600)), 9)
        expect(f"{len(running)} requests", "sum of the shares", total, 1.0, "every slot is of exactly one kind", SHARES)


class TestTheFigure:
    """Everything together: the paper's figure, within three points."""

    def test_the_share_of_tokens_is_that_of_the_paper(self):
        import sys

        from kit.kv_memory_experiments import FIGURE_2, NUM_SLOTS, lengths, simulate

        load = lengths(600)
        for policy, (tokens, *_) in FIGURE_2.items():
            got = 100 * simulate(sys.modules["s04_kv_memory"], policy, Buddy(NUM_SLOTS), load).tokens
            cause = "reserve() or shares() differs from the paper's account: the tests above say where"
            text = f"{got:.1f} %"
            want = text if abs(got - tokens) < 3 else f"{tokens} %, within 3 points"
            expect(f"policy {policy}, buddy allocator", "slots that hold tokens", text, want, cause, SHARES)

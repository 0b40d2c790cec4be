"""s10: two queues, a token budget and a KV pool. Exercise by exercise, then exact traces, then random tight loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.config import Config
from kit.errors import CourseError, DuplicateRequest, RequestRefused
from kit.replay import replay
from kit.runner import FakeRunner
from kit.workloads import read_workloads
from s08_static_batching import Batch, Engine, StaticBatcher
from s09_continuous_batching import ContinuousBatcher
from s10_scheduler import FCFS, AgedPriority, Scheduler, ThrashMeter
from support import (
    Run,
    attempt,
    check_conservation,
    expect,
    expect_steps,
    lone_output,
    mismatch,
    queue,
    request,
    run_to_end,
    sampled,
    seat,
)

FULL = "s10_scheduler/When the pool is full"
BACK = "s10_scheduler/The way back"
PASSES = "s10_scheduler/Two passes"
JOIN = "s10_scheduler/Who may join"
DOOR = "s10_scheduler/What is refused at the door"
NEXT = "s10_scheduler/Who is next"
EXAMPLE = "s10_scheduler/The running example"

POLICIES = ("fcfs", "shortest", "priority")


def machine(budget: int = 8, seats: int = 4, blocks: int = 5, block_size: int = 4, **options) -> Scheduler:
    """The running example's machine, unless told otherwise; no watermark."""
    limits = dict(max_num_batched_tokens=budget, max_num_seqs=seats, num_blocks=blocks, block_size=block_size)
    scheduler = Scheduler(Config(**limits, **{"watermark": 0.0, **options}))
    scheduler.batch = Batch()
    return scheduler


def waiting(scheduler: Scheduler) -> list[str]:
    return [one.id for one in scheduler.waiting]


def running(scheduler: Scheduler) -> list[str]:
    return [one.id for one in scheduler.running]


class TestPickVictim:
    """Exercise 1: Scheduler.pick_victim."""

    def test_fcfs_evicts_the_last_admitted(self):
        scheduler = machine(blocks=9)
        seat(scheduler, *(request(name, 3, 6, made=1) for name in "ABC"))
        where = "A, B and C run, admitted in this order"
        victim = scheduler.pick_victim()
        if victim is None:
            mismatch(where, "pick_victim()", None, "C", "the policy's answer is not returned: `return` is missing", FULL)
        cause = "the policy names it: the last admitted, whose user has read least of the answer"
        expect(where, "pick_victim()", victim.id, "C", cause, FULL)

    def test_priority_evicts_the_least_urgent(self):
        scheduler = machine(blocks=9, policy="priority")
        seat(scheduler, *(request(name, 3, 6, made=1, priority=p) for name, p in zip("ABC", (1, 7, 3))))
        where = "A, B and C run with priorities 1, 7 and 3"
        expect(where, "pick_victim()", scheduler.pick_victim().id, "B", "ask the policy; don't count on the order", NEXT)

    def test_a_policy_of_your_own_is_asked(self):
        class MostBlocks(FCFS):
            def victim(self, running):
                return max(running, key=lambda one: len(one.blocks))

        scheduler = Scheduler(Config(num_blocks=20, block_size=4), MostBlocks())
        seat(scheduler, request("A", 3, 6, made=1), request("B", 20, 6, made=1), request("C", 3, 6, made=1))
        cause = "return self.policy.victim(self.running): the scheduler has no opinion of its own"
        expect("a policy that evicts the largest, B", "pick_victim()", scheduler.pick_victim().id, "B", cause, NEXT)


class TestPreempt:
    """Exercise 2: Scheduler.preempt."""

    def evicted(self, policy: str = "fcfs", scheduled: bool = False):
        """A and B run, D waits; C (prompt 5, one output, 5 tokens stored) is evicted, from the middle of its step if asked."""
        scheduler = machine(blocks=9, policy=policy)
        a, b, c, d = (
            request(name, n, 6, made=made) for name, n, made in (("A", 3, 2), ("B", 4, 2), ("C", 5, 1), ("D", 2, 0))
        )
        seat(scheduler, a, b, c)
        queue(scheduler, d)
        if scheduled:
            scheduler.compute(a, 1)
            scheduler.compute(c, 1)
        return scheduler, c, scheduler.preempt(c)

    WHERE = "A, B and C run, D waits; C has stored 5 tokens and is evicted"

    def test_a_victim_leaves_the_running_ones(self):
        scheduler, *_ = self.evicted()
        expect(self.WHERE, "running", running(scheduler), ["A", "B"], "take it out of `running`", FULL)

    def test_its_blocks_come_back(self):
        scheduler, c, _ = self.evicted()
        cause = "self._park(request) gives its blocks to the pool; without that nothing is won by the eviction"
        expect(self.WHERE, "free blocks", scheduler.pool.num_free, 9 - 1 - 2, cause, FULL)
        expect(self.WHERE, "its block table", c.blocks, [], cause, FULL)

    def test_its_kv_is_gone_so_nothing_counts_as_computed(self):
        _, c, _ = self.evicted()
        cause = "faster than physics: its KV is thrown away, so it is behind by everything it ever had"
        expect(self.WHERE, "num_computed_tokens", c.num_computed_tokens, 0, cause, BACK)

    def test_it_keeps_its_output(self):
        _, c, _ = self.evicted()
        cause = "only the KV is lost; its user has read these tokens, so they are never made again"
        got = (c.output, c.num_tokens)
        expect(self.WHERE, "output, num_tokens", got, (lone_output(c)[:1], 6), cause, BACK)

    def test_what_was_thrown_away_is_counted(self):
        scheduler, c, _ = self.evicted()
        cause = "self._park(request) counts them, once; call it before anything sets num_computed_tokens to 0"
        got = (c.recomputed_tokens, scheduler.batch.thrown_away)
        expect(self.WHERE, "recomputed_tokens, batch.thrown_away", got, (5, 5), cause, BACK)

    def test_the_eviction_is_counted_and_listed(self):
        scheduler, c, _ = self.evicted()
        cause = "count it in num_preemptions and list it in `self.batch.preempted`"
        got = (c.num_preemptions, [one.id for one in scheduler.batch.preempted])
        expect(self.WHERE, "num_preemptions, preempted", got, (1, ["C"]), cause, FULL)

    def test_a_victim_goes_to_the_front(self):
        scheduler, *_ = self.evicted()
        cause = "push it with the order it has: it came before everyone who waits. With a new order it goes to the back"
        expect(self.WHERE, "waiting", waiting(scheduler), ["C", "D"], cause, BACK)

    def test_under_shortest_first_it_goes_to_its_keys_place(self):
        scheduler, *_ = self.evicted("shortest")
        cause = "`waiting.push` puts it where its key says: D's prompt of 2 is shorter than C's of 5"
        expect(self.WHERE, "waiting", waiting(scheduler), ["D", "C"], cause, NEXT)

    def test_a_victim_that_was_not_scheduled_yet_gives_nothing_back(self):
        *_, given_back = self.evicted()
        cause = "it has taken nothing from this step's budget, and 0 is a number: not None"
        expect(self.WHERE, "preempt() returned", given_back, 0, cause, FULL)

    def test_a_victim_that_was_scheduled_already_gives_its_tokens_back(self):
        scheduler, _, given_back = self.evicted(scheduled=True)
        where = "A and C have got a token in this step, then C is evicted"
        cause = "the refund is forgotten: take it out of `self.batch.tokens` and return the tokens it had there"
        expect(where, "batch.tokens", [one.id for one in scheduler.batch.tokens], ["A"], cause, FULL)
        expect(where, "preempt() returned", given_back, 1, cause, FULL)

    def test_tokens_that_were_given_back_were_never_stored(self):
        scheduler, c, _ = self.evicted(scheduled=True)
        where = "C has 5 tokens stored and a sixth in this step, then it is evicted"
        cause = "set num_computed_tokens back by what it gives back, before `_park` counts: only 5 were ever stored"
        got = (c.recomputed_tokens, scheduler.batch.thrown_away)
        expect(where, "recomputed_tokens, batch.thrown_away", got, (5, 5), cause, BACK)
        expect(where, "free blocks", scheduler.pool.num_free, 9 - 2 - 2, "its blocks come back, the new one too", FULL)


class TestDecodePass:
    """Exercise 3: Scheduler.decode_pass."""

    def test_each_running_request_gets_its_next_token(self):
        scheduler = machine(blocks=9)
        a, b = request("A", 3, 6, made=1), request("B", 5, 6, made=2)
        seat(scheduler, a, b)
        scheduler.decode_pass(8)
        cause = "call self.compute(request, n) with n = self.chunk_size(request, budget), in the order of `running`"
        expect("A and B run, memory is ample", "batch.tokens", scheduler.batch.tokens, {a: 1, b: 1}, cause, PASSES)

    def test_what_they_compute_is_taken_off_the_budget(self):
        scheduler = machine(blocks=9)
        seat(scheduler, *(request(name, 3, 6, made=1) for name in "ABC"))
        cause = "decodes are not charged to the budget: each costs one token, and the rest is what admissions may use"
        expect("A, B and C run, budget 8", "decode_pass(8) returned", scheduler.decode_pass(8), 5, cause, PASSES)

    def test_with_nobody_running_the_whole_budget_is_left(self):
        expect("nobody runs", "decode_pass(8) returned", machine().decode_pass(8), 8, "nothing was spent", PASSES)

    def test_it_stops_when_the_budget_is_spent(self):
        scheduler = machine(budget=4, seats=8, blocks=9, allow_small_budget=True)
        seat(scheduler, *(request(name, 3, 6, made=1) for name in "ABCDEFGH"))
        left = scheduler.decode_pass(4)
        where, cause = (
            "eight run, budget 4",
            "chunk_size is 0 once the budget is spent: stop there, nobody computes 0 tokens",
        )
        expect(where, "in the batch", [one.id for one in scheduler.batch.tokens], list("ABCD"), cause, PASSES)
        expect(where, "decode_pass(4) returned", left, 0, cause, PASSES)

    @pytest.mark.parametrize("stored, blocks", [(15, 1), (16, 2), (17, 2)])
    def test_a_block_is_taken_only_at_a_boundary(self, stored, blocks):
        scheduler = machine(blocks=9, block_size=16)
        a = request("A", stored, 6, made=1)
        seat(scheduler, a)
        scheduler.decode_pass(8)
        where, cause = f"A has stored {stored} tokens in blocks of 16 and gets one more", "ceil((stored + 1) / 16) blocks"
        expect(where, "blocks", len(a.blocks), blocks, cause, FULL)

    def test_a_full_pool_is_no_reason_to_evict_while_there_is_room_in_the_last_block(self):
        scheduler = machine(blocks=2)
        a, b = request("A", 2, 6, made=1), request("B", 3, 2, made=1)
        seat(scheduler, a, b)
        scheduler.decode_pass(8)
        cause = "it lacks 0 blocks and 0 are free: evict only while it lacks *more* than are free"
        expect("no block is free, none is needed", "preempted", scheduler.batch.preempted, [], cause, FULL)
        expect("no block is free, none is needed", "batch.tokens", scheduler.batch.tokens, {a: 1, b: 1}, cause, FULL)

    def test_the_last_free_block_is_used_before_anybody_is_evicted(self):
        scheduler = machine(blocks=3)
        a, b = request("A", 4, 6, made=1), request("B", 3, 2, made=1)
        seat(scheduler, a, b)
        scheduler.decode_pass(8)
        cause = "it lacks 1 block and 1 is free: an exact fit is enough, evict only while it lacks *more* than are free"
        expect("one block is free, A needs it", "preempted", scheduler.batch.preempted, [], cause, FULL)

    def test_a_missing_block_evicts_the_last_admitted(self):
        scheduler = machine(blocks=4)
        a, b, c = (request(name, n, 6, made=1) for name, n in (("A", 4), ("B", 4), ("C", 5)))
        seat(scheduler, a, b, c)
        where = "A and B need a second block each, none is free; C was admitted last and holds 2"
        left = attempt(where, "decode_pass(8)", FULL, scheduler.decode_pass, 8)
        cause = "evict before computing: preempt(pick_victim()) while blocks are short, then pass over who was evicted"
        expect(where, "preempted", scheduler.batch.preempted, [c], cause, FULL)
        expect(where, "batch.tokens", scheduler.batch.tokens, {a: 1, b: 1}, cause, FULL)
        expect(where, "decode_pass(8) returned", left, 6, "who was evicted computes nothing and pays nothing", FULL)

    def test_evicting_somebody_who_was_served_already_skips_nobody(self):
        scheduler = machine(blocks=3, policy="priority")
        a, b, c = (request(x, n, 6, made=1, priority=p) for x, n, p in (("A", 3, 9), ("B", 4, 0), ("C", 3, 1)))
        seat(scheduler, a, b, c)
        where = "A, B, C run with priorities 9, 0, 1; A is served, then B needs a block, and A gives up its own"
        left = attempt(where, "decode_pass(8)", FULL, scheduler.decode_pass, 8)
        cause = "walk over a snapshot, tuple(self.running): taking A out of the list that you walk makes you step over C"
        expect(where, "batch.tokens", scheduler.batch.tokens, {b: 1, c: 1}, cause, FULL)
        expect(where, "decode_pass(8) returned", left, 6, "A's token went back to the budget", FULL)

    def test_after_it_has_evicted_itself_the_pass_goes_on(self):
        scheduler = machine(blocks=3, policy="priority")
        a, b, c = (request(x, n, 6, made=1, priority=p) for x, n, p in (("A", 3, 0), ("B", 4, 9), ("C", 3, 1)))
        seat(scheduler, a, b, c)
        where = "A, B, C run with priorities 0, 9, 1; B needs a block and is the victim itself"
        attempt(where, "decode_pass(8)", FULL, scheduler.decode_pass, 8)
        cause = "B is gone, C still wants its token: go on with the next, don't stop"
        expect(where, "batch.tokens", scheduler.batch.tokens, {a: 1, c: 1}, cause, FULL)

    def test_one_eviction_may_not_be_enough(self):
        scheduler = machine(blocks=3)
        a, b, c = request("A", 4, 9, made=1), request("B", 3, 6, made=1), request("C", 3, 6, made=1)
        seat(scheduler, a, b, c)
        a.output = lone_output(a)[:6]
        a.num_tokens = 10
        where = "A is behind by 6 tokens, as in a step that checks drafts, and lacks 2 blocks; B and C hold one each"
        left = attempt(where, "decode_pass(16)", FULL, scheduler.decode_pass, 16)
        cause = "`while`, not `if`: evict until the request has what it lacks"
        expect(where, "preempted", scheduler.batch.preempted, [c, b], cause, FULL)
        expect(where, "batch.tokens", scheduler.batch.tokens, {a: 6}, cause, FULL)
        expect(where, "decode_pass(16) returned", left, 10, cause, FULL)

    def test_a_request_that_evicts_itself_computes_nothing(self):
        scheduler = machine(blocks=2)
        a, b = request("A", 3, 6, made=1), request("B", 4, 6, made=1)
        seat(scheduler, a, b)
        where = "no block is free; A needs none, B needs one and was admitted last"
        left = attempt(where, "decode_pass(8)", FULL, scheduler.decode_pass, 8)
        cause = "B itself is the victim: leave it out, and take nothing off the budget for it"
        expect(where, "preempted", scheduler.batch.preempted, [b], cause, FULL)
        expect(where, "batch.tokens", scheduler.batch.tokens, {a: 1}, cause, FULL)
        expect(where, "decode_pass(8) returned", left, 7, cause, FULL)

    def test_a_request_that_evicts_itself_takes_nobody_with_it(self):
        scheduler = machine(blocks=3)
        a, b = request("A", 3, 6, made=1), request("B", 4, 9, made=1)
        seat(scheduler, a, b)
        scheduler.pool.allocate(1)
        b.output = lone_output(b)[:6]
        b.num_tokens = 10
        where = "no block is free; B, admitted last, is behind by 6 tokens and lacks 2"
        attempt(where, "decode_pass(16)", FULL, scheduler.decode_pass, 16)
        cause = "once it has evicted itself the loop ends, whatever it still lacks: A must not pay for it"
        expect(where, "preempted", scheduler.batch.preempted, [b], cause, FULL)

    def test_who_comes_after_a_victim_is_served(self):
        scheduler = machine(budget=8, blocks=4, policy="priority")
        a, b, c = (request(name, n, 9, made=1, priority=p) for name, n, p in (("A", 4, 0), ("B", 8, 9), ("C", 3, 1)))
        seat(scheduler, a, b, c)
        where = "A evicts B, which stood between A and C in `running`; B is now behind by 9 tokens, 7 are left"
        attempt(where, "decode_pass(8)", FULL, scheduler.decode_pass, 8)
        cause = "pass over who was evicted *first*: its chunk_size of 0 is no reason to stop"
        expect(where, "batch.tokens", scheduler.batch.tokens, {a: 1, c: 1}, cause, FULL)

    def test_a_lone_request_that_cannot_grow_ends_its_own_step(self):
        scheduler = machine(blocks=1)
        a = request("A", 4, 6, made=1)
        seat(scheduler, a)
        where = "A alone, its one block is full"
        cause = "nobody is left to evict once A is out: ask in the loop's condition whether it was evicted itself"
        left = attempt(where, "decode_pass(8)", FULL, scheduler.decode_pass, 8, nobody_left=cause)
        expect(where, "preempted", scheduler.batch.preempted, [a], cause, FULL)
        expect(where, "decode_pass(8) returned", left, 8, cause, FULL)

    def test_a_victim_that_was_served_before_pays_back(self):
        scheduler = machine(blocks=2, policy="priority")
        a, b = request("A", 3, 6, made=1, priority=9), request("B", 4, 6, made=1, priority=0)
        seat(scheduler, a, b)
        left = scheduler.decode_pass(8)
        where = "A (priority 9) has got its token; then B (priority 0) needs a block and A is evicted for it"
        cause = "the refund is forgotten: the budget grows by what `preempt` gives back"
        expect(where, "batch.tokens", scheduler.batch.tokens, {b: 1}, cause, FULL)
        expect(where, "decode_pass(8) returned", left, 7, cause, FULL)


class TestWhyWait:
    """Exercise 4: Scheduler.why_wait."""

    def check(self, where, scheduler, request, budget, want, cause, see=JOIN):
        wait = scheduler.why_wait(request, budget)
        got = None if wait is None else tuple(wait)[:3]
        expect(where, "why_wait()", got, want, cause, see)

    def test_a_request_that_fits_does_not_wait(self):
        self.check("an empty machine", machine(), request("A", 3, 6), 8, None, "no rule holds it back: return None")

    def test_a_seat_must_be_free(self):
        scheduler = machine(seats=2, blocks=9)
        seat(scheduler, *(request(name, 3, 6, made=1) for name in "AB"))
        cause = "those who run and one more, 2 + 1, against max_num_seqs"
        self.check("both seats are taken", scheduler, request("C", 1, 1), 8, ("seats", 3, 2), cause)

    def test_the_last_seat_can_be_taken(self):
        scheduler = machine(seats=2, blocks=9)
        seat(scheduler, request("A", 3, 6, made=1))
        self.check("one of two seats is free", scheduler, request("B", 1, 1), 8, None, "1 + 1 is not more than 2")

    def test_a_prompt_must_fit_into_the_budget_that_is_left(self):
        cause = "whole prompts only: all 5 tokens against the budget that is *left*, not the budget of the step"
        self.check("5 tokens, 4 left", machine(), request("A", 5, 6), 4, ("budget", 5, 4), cause)

    def test_a_budget_that_is_met_exactly_is_enough(self):
        cause = "an exact fit is enough: it waits if it needs *more* than is left"
        self.check("5 tokens, 5 left", machine(), request("A", 5, 6), 5, None, cause)

    def test_an_evicted_request_needs_room_for_its_outputs_too(self):
        scheduler = machine()
        c = request("C", 5, 6, made=3)
        queue(scheduler, c)
        cause = "the prompt alone is not enough: its outputs lost their KV too, so it is behind by num_tokens = 8"
        self.check("C comes back with prompt 5 and 3 outputs", scheduler, c, 7, ("budget", 8, 7), cause, BACK)
        self.check("C comes back with prompt 5 and 3 outputs", scheduler, c, 8, None, cause, BACK)

    def test_its_outputs_need_blocks_too(self):
        scheduler = machine(blocks=1)
        c = request("C", 4, 6, made=1)
        queue(scheduler, c)
        cause = "the prompt alone is not enough: 4 + 1 tokens need a second block"
        self.check("C comes back with prompt 4 and 1 output", scheduler, c, 8, ("blocks", 2, 1), cause, BACK)

    def test_what_is_still_stored_need_not_be_computed(self):
        scheduler, c = machine(blocks=2), request("C", 5, 6, made=1)
        scheduler.pool.grow(c, 4)
        c.num_computed_tokens = 4
        cause = "it is behind by num_tokens - num_computed_tokens = 2; s12 moves KV to the CPU and brings it back"
        self.check("C has 6 tokens, 4 of them stored", scheduler, c, 1, ("budget", 2, 1), cause, BACK)
        self.check("C has 6 tokens, 4 of them stored", scheduler, c, 2, None, cause, BACK)

    @pytest.mark.parametrize("tokens, blocks", [(15, 1), (16, 1), (17, 2)])
    def test_blocks_are_whole(self, tokens, blocks):
        scheduler = machine(budget=32, blocks=2, block_size=16)
        scheduler.pool.allocate(2)
        cause = "the blocks it lacks: pool.missing(request, tokens), rounded up"
        self.check(f"{tokens} tokens, blocks of 16", scheduler, request("A", tokens, 1), 32, ("blocks", blocks, 0), cause)

    def test_the_last_block_can_be_taken(self):
        scheduler = machine()
        scheduler.pool.allocate(4)
        cause = "an exact fit is enough: it waits if it lacks *more* blocks than are free"
        self.check("1 of 5 blocks free, 4 tokens", scheduler, request("A", 4, 1), 8, None, cause)

    def test_admissions_stay_above_the_watermark(self):
        scheduler = machine(watermark=0.4)
        scheduler.pool.allocate(2)
        cause = "the watermark is ignored: 2 of the 3 free blocks are kept for those who run"
        self.check("3 of 5 blocks free, watermark 2", scheduler, request("A", 5, 1), 8, ("blocks", 2, 1), cause)
        self.check("3 of 5 blocks free, watermark 2", scheduler, request("B", 4, 1), 8, None, "1 block is usable")

    def test_below_the_watermark_less_than_nothing_is_usable(self):
        scheduler = machine(watermark=0.4)
        scheduler.pool.allocate(4)
        cause = "free minus watermark, 1 - 2: decodes may dip below the watermark, admissions may not"
        self.check("1 of 5 blocks free, watermark 2", scheduler, request("A", 1, 1), 8, ("blocks", 1, -1), cause)

    def test_zero_free_blocks_admit_nobody(self):
        scheduler = machine()
        scheduler.pool.allocate(5)
        self.check("no block is free", scheduler, request("A", 1, 1), 8, ("blocks", 1, 0), "one token needs a block")

    def test_a_step_that_evicts_admits_nobody(self):
        scheduler = machine()
        scheduler.batch.preempted.append(request("C", 5, 6, made=1))
        cause = "a step that evicts admits nobody: what it just freed would go to the newcomer. Ask this rule first"
        self.check("C was evicted in this step, all is free", scheduler, request("A", 1, 1), 8, ("eviction", 1, 0), cause)

    def test_the_first_rule_that_holds_is_the_reason(self):
        scheduler = machine(seats=1)
        seat(scheduler, request("A", 3, 6, made=1))
        scheduler.pool.allocate(4)
        cause = "the order of the rules: eviction, seats, budget, blocks"
        big = request("B", 9, 1)
        self.check("no seat, no budget, no block", scheduler, big, 2, ("seats", 2, 1), cause)
        scheduler.config = machine(seats=2).config
        self.check("no budget, no block", scheduler, big, 2, ("budget", 9, 2), cause)
        scheduler.batch.preempted.append(big)
        self.check("an eviction, no budget, no block", scheduler, big, 2, ("eviction", 1, 0), cause)

    def test_the_text_says_both_numbers(self):
        wait = machine().why_wait(request("A", 5, 6), 4)
        got = "5" in wait.text and "4" in wait.text
        expect(
            "5 tokens, 4 left", f"numbers in {wait.text!r}", got, True, "whoever reads it wants to know by how much", JOIN
        )

    def test_asking_changes_nothing(self):
        scheduler, a = machine(), request("A", 5, 6)
        queue(scheduler, a)
        scheduler.why_wait(a, 8)
        got = (waiting(scheduler), running(scheduler), scheduler.pool.num_free, a.num_computed_tokens)
        expect("A fits", "after why_wait()", got, (["A"], [], 5, 0), "it is a question: admit_pass is what acts", JOIN)


class TestAdmitPass:
    """Exercise 5: Scheduler.admit_pass."""

    def test_the_head_of_the_queue_joins(self):
        scheduler, a = machine(), request("A", 3, 6)
        queue(scheduler, a)
        left = scheduler.admit_pass(8)
        where = "A waits with a prompt of 3, budget 8"
        expect(where, "running", scheduler.running, [a], "pop it from `waiting`, append it to `running`", PASSES)
        expect(where, "waiting", waiting(scheduler), [], "pop it from `waiting`, append it to `running`", PASSES)
        expect(
            where, "batch.tokens", scheduler.batch.tokens, {a: 3}, "it computes its chunk_size: the whole prompt", PASSES
        )
        expect(where, "admit_pass(8) returned", left, 5, "a prompt is charged to the budget as well", PASSES)

    def test_it_gets_blocks_for_its_whole_prompt(self):
        scheduler, a = machine(), request("A", 5, 6)
        queue(scheduler, a)
        scheduler.admit_pass(8)
        where, cause = "a prompt of 5, blocks of 4", "self.compute(request, n) takes the blocks and advances the request"
        expect(where, "blocks, num_computed_tokens", (len(a.blocks), a.num_computed_tokens), (2, 5), cause, PASSES)

    def test_others_follow_until_the_head_has_to_wait(self):
        scheduler = machine()
        queue(scheduler, *(request(name, n, 6) for name, n in (("A", 3), ("B", 4), ("C", 5), ("D", 1))))
        left = scheduler.admit_pass(8)
        where = "A3 B4 C5 D1 wait, budget 8"
        cause = "while anybody waits, look at the new head; stop at the first that has to wait. Nobody overtakes it"
        expect(where, "running", running(scheduler), ["A", "B"], cause, PASSES)
        expect(where, "waiting", waiting(scheduler), ["C", "D"], cause, PASSES)
        expect(where, "admit_pass(8) returned", left, 1, "each admission leaves less for the next", PASSES)

    def test_the_head_learns_why_it_waits(self):
        scheduler = machine()
        queue(scheduler, request("A", 5, 6), request("B", 4, 6))
        scheduler.admit_pass(8)
        cause = "B's Wait goes to `self.batch.head`: the dashboard shows it"
        head = scheduler.batch.head
        expect("B needs 4, 3 are left", "batch.head", head and tuple(head)[:3], ("budget", 4, 3), cause, PASSES)

    def test_nobody_waits_so_no_reason_is_given(self):
        scheduler = machine()
        queue(scheduler, request("A", 3, 6))
        scheduler.admit_pass(8)
        expect("A has joined", "batch.head", scheduler.batch.head, None, "set it only when somebody has to wait", PASSES)

    def test_newcomers_and_returners_are_listed_apart(self):
        scheduler = machine()
        c, d = request("C", 5, 6, made=1), request("D", 1, 6)
        c.num_preemptions = 1
        queue(scheduler, c, d)
        scheduler.admit_pass(8)
        where, cause = "C was evicted once, D is new", "by num_preemptions: `batch.resumed` or `batch.admitted`"
        expect(where, "batch.resumed", scheduler.batch.resumed, [c], cause, BACK)
        expect(where, "batch.admitted", scheduler.batch.admitted, [d], cause, BACK)

    def test_a_returner_recomputes_its_prompt_and_its_outputs(self):
        scheduler, c = machine(), request("C", 5, 6, made=1)
        c.num_preemptions = 1
        queue(scheduler, c)
        scheduler.admit_pass(8)
        cause = "its outputs lost their KV too, so it recomputes num_tokens = 6, not its prompt only: use chunk_size"
        expect("C comes back with prompt 5, output 1", "batch.tokens", scheduler.batch.tokens, {c: 6}, cause, BACK)

    def test_a_returner_is_restored_before_it_computes(self):
        class Swapping(Scheduler):
            """Brings 4 of a parked request's tokens back, as a swap would."""

            def _restore(self, request):
                self.pool.grow(request, 4)
                request.num_computed_tokens = 4

        scheduler, c = machine(), request("C", 5, 6, made=1)
        scheduler.__class__ = Swapping
        c.num_preemptions = 1
        queue(scheduler, c)
        scheduler.admit_pass(8)
        cause = "self._restore(request) first, then chunk_size: what was restored need not be computed"
        expect("4 of C's 6 tokens are restored", "batch.tokens", scheduler.batch.tokens, {c: 2}, cause, BACK)

    def test_it_asks_why_wait_and_nothing_else(self):
        scheduler = machine()
        scheduler.why_wait = lambda one, budget: None if one.id == "A" else scheduler.batch.__class__()
        queue(scheduler, request("A", 1, 1), request("B", 1, 1))
        scheduler.admit_pass(8)
        cause = "the rules live in why_wait: don't count seats, tokens or blocks here again"
        expect("why_wait lets A in and B not", "running", running(scheduler), ["A"], cause, PASSES)


class TestAdd:
    """Exercise 6: Scheduler.add."""

    def refused(self, scheduler, one):
        try:
            scheduler.add(one)
        except RequestRefused as error:
            return error.reason, error.needed, error.available
        return "accepted"

    def test_a_request_joins_the_queue(self):
        scheduler = machine()
        scheduler.add(request("A", 3, 6))
        scheduler.add(request("B", 4, 5))
        cause = "make it live, then queue it: `self._live[id]` and `self.waiting.push`"
        expect("A and B were added", "waiting", waiting(scheduler), ["A", "B"], cause, EXAMPLE)
        expect("A and B were added", "live ids", sorted(scheduler._live), ["A", "B"], cause, EXAMPLE)

    def test_it_gets_its_number_in_the_order_of_add(self):
        scheduler, a, b = machine(), request("A", 3, 6), request("B", 4, 5)
        scheduler.add(a)
        scheduler.add(b)
        cause = "every tie is settled by `order`: 1, 2, … from `self._added`, set before it is queued"
        expect("A and B were added", "order", (a.order, b.order), (1, 2), cause, NEXT)

    def test_a_live_id_is_refused(self):
        scheduler, first = machine(), request("A", 3, 6)
        scheduler.add(first)
        with pytest.raises(DuplicateRequest, match="A"):
            scheduler.add(request("A", 4, 2))
        cause = "ask `self._live` before anything is written: a second A would overwrite the first"
        expect("A was added twice", "waiting", list(scheduler.waiting), [first], cause, DOOR)

    def test_what_can_outgrow_the_pool_is_refused(self):
        cause = "prompt + max_tokens - 1 = 21 slots are 6 blocks of 4, the pool has 5"
        got = self.refused(machine(budget=100), request("A", 17, 5))
        expect("prompt 17, 5 outputs, 5 blocks of 4", "add()", got, ("rejected_kv", 6, 5), cause, DOOR)

    def test_the_last_token_needs_no_slot(self):
        cause = "the last sampled token is never stored: 16 + 5 - 1 = 20 slots fill 5 blocks exactly. Use max_kv_slots"
        got = self.refused(machine(budget=100), request("A", 16, 5))
        expect("prompt 16, 5 outputs, 5 blocks of 4", "add()", got, "accepted", cause, DOOR)

    def test_the_watermark_is_no_room_for_a_lone_request(self):
        scheduler = machine(budget=100, watermark=0.2)
        cause = "an admission may fill pool - watermark only, so what can never fit there would wait for ever"
        got = self.refused(scheduler, request("A", 16, 5))
        expect("20 slots, 5 blocks of 4, watermark 1", "add()", got, ("rejected_kv", 5, 4), cause, DOOR)
        expect("16 slots fit", "add()", self.refused(scheduler, request("B", 16, 1)), "accepted", cause, DOOR)

    def test_a_prompt_beyond_the_budget_is_refused(self):
        cause = "no step may compute it, and everybody behind it would wait for ever"
        got = self.refused(machine(), request("A", 9, 1))
        expect("prompt 9, budget 8", "add()", got, ("rejected_budget", 9, 8), cause, DOOR)

    def test_what_could_come_back_beyond_the_budget_is_refused(self):
        cause = "after an eviction it returns in one piece of up to max_kv_slots = 4 + 6 - 1 tokens: count the outputs too"
        got = self.refused(machine(), request("A", 4, 6))
        expect("prompt 4, 6 outputs, budget 8", "add()", got, ("rejected_budget", 9, 8), cause, DOOR)
        expect("one output less", "add()", self.refused(machine(), request("A", 4, 5)), "accepted", cause, DOOR)

    def test_memory_is_asked_before_the_budget(self):
        got = self.refused(machine(blocks=1), request("A", 20, 1))
        expect("beyond both limits", "add()", got, ("rejected_kv", 5, 1), "the order is length, pool, budget", DOOR)

    def test_a_prompt_without_room_for_one_output_is_refused(self):
        scheduler = machine(budget=64, blocks=16, max_model_len=16)
        cause = "a prompt of max_model_len leaves no room for an output: prompt + 1 against max_model_len"
        got = self.refused(scheduler, request("A", 16, 1))
        expect("prompt 16, max_model_len 16", "add()", got, ("rejected_len", 17, 16), cause, DOOR)

    def test_max_tokens_is_cut_to_the_room_behind_the_prompt(self):
        scheduler = machine(budget=64, blocks=16, max_model_len=16)
        a, b = request("A", 14, 10), request("B", 4, 3)
        scheduler.add(a)
        scheduler.add(b)
        cause = "max_tokens = min(max_tokens, max_model_len - prompt): it is cut, never raised"
        expect("max_model_len 16", "max_tokens", (a.max_tokens, b.max_tokens), (2, 3), cause, DOOR)

    def test_the_other_checks_use_the_cut_length(self):
        scheduler = machine(budget=16, blocks=4, max_model_len=16)
        cause = "cut max_tokens first: 14 + 2 - 1 = 15 slots fit, the 99 that were asked for never come"
        expect("prompt 14, 99 outputs", "add()", self.refused(scheduler, request("A", 14, 99)), "accepted", cause, DOOR)

    def test_the_length_is_checked_even_if_the_other_checks_are_off(self):
        scheduler = machine(max_model_len=16, reject_unservable=False)
        cause = "reject_unservable turns off pool and budget; what the model can't do stays refused"
        expect("prompt 16", "add()", self.refused(scheduler, request("A", 16, 1)), ("rejected_len", 17, 16), cause, DOOR)

    def test_reject_unservable_turns_the_check_off(self):
        scheduler = machine(reject_unservable=False)
        cause = "with reject_unservable off it is queued, and the incident may begin"
        expect("prompt 99", "add()", self.refused(scheduler, request("A", 99, 1)), "accepted", cause, DOOR)

    def test_a_refusal_leaves_no_trace(self):
        scheduler = machine()
        self.refused(scheduler, request("A", 99, 1))
        where, cause = "A was refused", "check everything before anything is written: its id stays free, its number too"
        got = (waiting(scheduler), list(scheduler._live), scheduler._added)
        expect(where, "waiting, live, added", got, ([], [], 0), cause, DOOR)
        again = request("A", 3, 6)
        scheduler.add(again)
        expect(where, "order of the next", again.order, 1, cause, DOOR)

    def test_a_prompt_of_one_token_is_a_request(self):
        scheduler = machine(budget=1, seats=1, blocks=1)
        expect(
            "prompt 1, 1 output", "add()", self.refused(scheduler, request("A", 1, 1)), "accepted", "1 + 1 - 1 slots", DOOR
        )


class TestTheRunningExample:
    """Everything together, in small numbers."""

    NINE_STEPS = (
        "A3 B4    | C waits: budget 5 > 1",
        "A1 B1 C5 | D waits: budget 2 > 1",
        "A1 B1    | C evicted",
        "A1 B1    | C waits: blocks 2 > 1",
        "A1 B1    | B done, C waits: blocks 2 > 1",
        "A1 C6    | A done, D waits: budget 2 > 1",
        "C1 D2    | C done",
        "D1",
        "D1       | D done",
    )

    def requests(self):
        return [request(name, *size) for name, size in zip("ABCD", ((3, 6), (4, 5), (5, 3), (2, 3)))]

    def test_nine_steps(self):
        run = Run(machine(), self.requests())
        expect_steps("the running example", run, self.NINE_STEPS, FULL)
        c = run.requests[2]
        where, cause = "the running example", "C was evicted once, with 5 tokens stored; the sixth was known, not stored"
        expect(where, "C's preemptions, recomputed_tokens", (c.num_preemptions, c.recomputed_tokens), (1, 5), cause, BACK)
        expect(where, "free blocks", run.scheduler.pool.num_free, 5, "everybody has left", FULL)

    def test_every_waiting_request_can_say_why(self):
        scheduler = machine()
        for one in [*self.requests(), request("E", 1, 1)]:
            scheduler.add(one)
        batch = scheduler.schedule()
        got = {name: wait.rule for name, wait in scheduler.explain(batch).items()}
        cause = "C lacks budget, D too; E would fit, but nobody overtakes"
        expect("step 1", "explain()", got, {"C": "budget", "D": "budget", "E": "behind"}, cause, JOIN)

    def test_its_evil_twin_is_refused_at_the_door(self):
        run = Run(machine(), [request("A", 4, 8), request("B", 4, 8), request("D", 2, 3)])
        run.arrive()
        got = {name: (error.reason, error.needed, error.available) for name, error in run.refused.items()}
        cause = "4 + 8 - 1 = 11 tokens may have to come back in one step of 8"
        expect("A 4->8, B 4->8, D 2->3", "refused", got, dict.fromkeys("AB", ("rejected_budget", 11, 8)), cause, DOOR)

    def test_its_evil_twin_unchecked_is_stuck_for_ever(self):
        requests = [request("A", 4, 8), request("B", 4, 8), request("D", 2, 3)]
        engine = Engine(machine(reject_unservable=False), FakeRunner(), requests)
        report = engine.run(1000)
        where = "A 4->8, B 4->8, D 2->3, unchecked"
        cause = "B was evicted with 5 outputs: it has become 9 tokens, and no step may compute more than 8"
        expect(where, "end, steps", (report.end, report.num_steps), ("stuck", 8), cause, DOOR)
        head = engine.scheduler.schedule().head
        expect(where, "the head's reason", head and tuple(head)[:3], ("budget", 9, 8), cause, DOOR)
        expect(where, "at the head", waiting(engine.scheduler), ["B"], "A and D have finished", DOOR)


class TestTightMemory:
    """What happens when the pool or the budget binds, one case at a time."""

    def test_two_that_would_deadlock_both_finish(self):
        requests = [request("A", 4, 5), request("B", 4, 5)]
        table = [
            "A4 B4",
            "A1    | B evicted",
            "A1    | B waits: blocks 2 > 0",
            "A1    | B waits: blocks 2 > 0",
            "A1    | A done, B waits: blocks 2 > 0",
            "B5",
            "B1",
            "B1",
            "B1    | B done",
        ]
        expect_steps("two that need two blocks each, two in all", Run(machine(blocks=2), requests), table, FULL)

    def test_a_lone_request_beyond_the_pool_unchecked_is_stuck_for_ever(self):
        requests = [request("A", 4, 8), request("B", 1, 1, arrival=9)]
        engine = Engine(machine(budget=16, blocks=1, reject_unservable=False), FakeRunner(), requests)
        report = engine.run(1000)
        where = "A 4->8 alone in one block of 4, unchecked; B comes later"
        cause = "A evicts itself for its fifth token and needs two blocks to come back: B waits behind it for ever"
        expect(where, "end, A's evictions", (report.end, requests[0].num_preemptions), ("stuck", 1), cause, DOOR)
        head = engine.scheduler.schedule().head
        expect(where, "the head's reason", head and tuple(head)[:3], ("blocks", 2, 1), cause, DOOR)
        expect(where, "free blocks", engine.scheduler.pool.num_free, 1, "who waits holds nothing", FULL)

    def test_a_prompt_beyond_the_pool_unchecked_blocks_all_behind_it(self):
        requests = [request("A", 21, 1), request("B", 1, 1)]
        engine = Engine(machine(budget=64, reject_unservable=False), FakeRunner(), requests)
        report = engine.run(1000)
        got = report.end, waiting(engine.scheduler)
        cause = "A needs 6 blocks, the pool has 5; nobody overtakes the head"
        expect("A's prompt is 21 tokens, 5 blocks of 4, unchecked", "end, waiting", got, ("stuck", ["A", "B"]), cause, DOOR)

    def test_a_pool_that_fills_exactly_evicts_nobody(self):
        run = run_to_end(machine(blocks=4), [request("A", 4, 5), request("B", 4, 5)])
        got = [one.num_preemptions for one in run.requests]
        expect("two need all four blocks, exactly", "preemptions", got, [0, 0], "an exact fit is enough", FULL)

    def test_a_prompt_that_meets_the_budget_exactly_runs(self):
        run = Run(machine(blocks=2), [request("A", 8, 1)])
        expect_steps("a prompt of 8, budget 8", run, ["A8 | A done"], JOIN)

    def test_decodes_come_first_and_are_charged(self):
        requests = [request("A", 2, 9), request("B", 2, 9), request("C", 7, 2, arrival=1)]
        run = Run(machine(blocks=20, budget=10, seats=8), requests)
        table = ["A2 B2", "A1 B1 C7", "A1 B1 C1 | C done", "A1 B1"]
        expect_steps("budget 10, C needs 7", run, table, PASSES)
        requests = [request("A", 2, 3), request("B", 2, 3), request("C", 7, 2, arrival=1)]
        run = Run(machine(blocks=20, budget=8, seats=8), requests)
        table = [
            "A2 B2",
            "A1 B1 | C waits: budget 7 > 6",
            "A1 B1 | A done, B done, C waits: budget 7 > 6",
            "C7",
            "C1 | C done",
        ]
        expect_steps("budget 8, C needs 7", run, table, PASSES)

    def test_a_step_that_evicts_admits_nobody_under_shortest_first(self):
        requests = [request("A", 4, 5), request("B", 6, 3), request("D", 1, 2, arrival=1)]
        run = Run(machine(budget=10, blocks=3, policy="shortest"), requests)
        table = ["A4 B6", "A1 | B evicted, D waits: eviction 1 > 0", "A1 D1", "A1 D1 | D done, B waits: blocks 2 > 0"]
        expect_steps("B is evicted, one block stays free, and D is shorter", run, table, JOIN)

    def test_the_watermark_keeps_blocks_for_those_who_run(self):
        requests = [request("A", 4, 9), request("B", 4, 1)]
        run = Run(machine(budget=16, blocks=4, watermark=0.25), requests)
        expect_steps("4 blocks, watermark 1", run, ["A4 B4 | B done"], JOIN)
        requests = [request("A", 4, 5), request("B", 8, 1), request("C", 1, 1)]
        table = ["A4 B8 | B done, C waits: blocks 1 > 0", "A1 C1 | C done"]
        expect_steps("4 blocks, watermark 1", Run(machine(budget=16, blocks=4, watermark=0.25), requests), table, JOIN)

    def test_priority_evicts_whom_it_has_already_served(self):
        requests = [
            request("A", 3, 6, priority=9),
            request("B", 4, 5, priority=0),
            request("D", 1, 2, priority=5, arrival=1),
        ]
        run = Run(machine(blocks=2, policy="priority"), requests)
        table = ["B4 A3", "B1 | A evicted, D waits: eviction 1 > 0"]
        expect_steps("A is less urgent than B", run, table, NEXT)

    def test_tokens_that_were_streamed_are_not_made_again(self):
        requests = [request("A", 4, 9), request("B", 4, 9)]
        run = Run(machine(budget=12, blocks=4), requests)
        seen = []
        run.to_end(lambda run: seen.append(list(requests[1].output)))
        where = "B is evicted with outputs that its user has read"
        expect(where, "B's preemptions", requests[1].num_preemptions > 0, True, "the pool is too small for both", FULL)
        cause = "an eviction keeps the output: a stream only ever grows"
        grows = all(later[: len(earlier)] == earlier for earlier, later in zip(seen, seen[1:]))
        expect(where, "B's stream only grows", grows, True, cause, BACK)
        expect(where, "B's output", requests[1].output, lone_output(requests[1]), cause, BACK)

    def test_a_budget_below_the_seats_starves_the_tail(self):
        scheduler = machine(budget=4, seats=8, blocks=999, allow_small_budget=True, reject_unservable=False)
        requests = [request(name, 3, 200, made=1) for name in "ABCDEFGH"]
        seat(scheduler, *requests)
        run = Run(scheduler)
        for _ in range(100):
            run.step()
        got = [len(one.output) - 1 for one in requests]
        cause = "the order of `running` is fixed: a token each until the budget is spent, the tail gets nothing"
        expect("budget 4, eight run, 100 steps", "tokens", got, [100] * 4 + [0] * 4, cause, PASSES)

    def test_many_seats_cost_nothing(self):
        run = run_to_end(machine(budget=4096, seats=4096, blocks=9), [request(f"R{i}", 3, 4) for i in range(12)])
        expect("4096 seats, 9 blocks", "finished", len(run.finished), 12, "seats are a limit, not a reservation", PASSES)

    def test_shortest_first_serves_the_shortest_prompt(self):
        scheduler = machine(policy="shortest", blocks=9)
        for name, size in zip("ABC", (5, 2, 3)):
            scheduler.add(request(name, size, 3))
        scheduler.schedule()
        expect("prompts 5, 2 and 3", "running", running(scheduler), ["B", "C"], "the queue follows the policy's key", NEXT)


class TestEndings:
    """Requests that end in unusual ways leave nothing behind."""

    def test_an_abort_in_any_state_gives_everything_back(self):
        for state in ("waiting", "running", "preempted"):
            requests = [request(name, *size) for name, size in zip("ABCD", ((3, 6), (4, 5), (5, 3), (2, 3)))]
            run = Run(machine(), requests)
            for _ in range(3):
                run.step()
            a, _, c, d = requests
            victim = {"waiting": d, "running": a, "preempted": c}[state]
            run.scheduler.abort(victim.id)
            check_conservation(run.scheduler, requests, f"{victim.id} was aborted while {state}")
            expect(
                f"aborted while {state}", "finish_reason", victim.finish_reason, "abort", "abort says why it ended", DOOR
            )
            run.to_end()
            free = run.scheduler.pool.num_free
            expect(f"aborted while {state}", "free blocks at the end", free, 5, "an abort releases the blocks", FULL)

    def test_an_abort_between_schedule_and_update_is_passed_over(self):
        requests = [request("A", 3, 6), request("B", 4, 5)]
        run = Run(machine(), requests)
        batch = run.schedule()
        run.scheduler.abort("A")
        check_conservation(run.scheduler, requests, "A was aborted while its step ran")
        run.update(batch)
        cause = "its token arrives after it has ended, and is dropped"
        expect("A was aborted while its step ran", "A's output", requests[0].output, [], cause, DOOR)
        run.to_end()

    def test_an_aborted_request_that_comes_back_counts_as_new(self):
        scheduler = machine()
        scheduler.add(request("A", 3, 6))
        scheduler.abort("A")
        scheduler.add(request("A", 3, 6))
        expect("A was aborted and added again", "waiting", waiting(scheduler), ["A"], "its id is free after an abort", DOOR)
        expect("nobody is called X", "abort('X')", scheduler.abort("X"), None, "an unknown id is not an error", DOOR)

    def test_a_runner_that_raises_ends_its_step_and_frees_its_blocks(self):
        class Breaks(FakeRunner):
            steps = 0

            def execute(self, batch):
                self.steps += 1
                if self.steps == 3:
                    raise RuntimeError("out of memory")
                return super().execute(batch)

        requests = [request(name, *size) for name, size in zip("ABCD", ((3, 6), (4, 5), (5, 3), (2, 3)))]
        engine = Engine(machine(), Breaks(), requests)
        engine.run(1000)
        reasons = [one.finish_reason for one in requests]
        where, cause = "the runner breaks in step 3, with A and B; C has just been evicted", "the engine lives on"
        expect(where, "finish reasons", reasons, ["error", "error", "length", "length"], cause, DOOR)
        expect(where, "free blocks", engine.scheduler.pool.num_free, 5, "an error releases the blocks", FULL)
        expect(where, "C's output", requests[2].output, lone_output(requests[2]), "nothing happened to C", BACK)

    def test_a_stop_token_ends_a_request_early(self):
        stop = lone_output(request("A", 3, 6))[2]
        a = request("A", 3, 6, stop=[stop])
        run = run_to_end(machine(), [a])
        got = (a.finish_reason, len(a.output), run.scheduler.pool.num_free)
        expect(
            "A's third token is a stop token", "reason, outputs, free", got, ("stop", 3, 5), "its blocks come back", FULL
        )


@dataclass(frozen=True)
class Load:
    """A random load and a machine on which all of it can run, but not all together."""

    sizes: list[tuple[int, int, int, int]]  # prompt, max_tokens, arrival, priority
    block_size: int
    spare_blocks: int
    kept_back: int
    spare_tokens: int
    seats: int

    def requests(self):
        return [
            request(f"R{i}", prompt, tokens, arrival=arrival, priority=priority)
            for i, (prompt, tokens, arrival, priority) in enumerate(self.sizes)
        ]

    def machine(self, policy: str, more_blocks: int = 0) -> Scheduler:
        slots = max(one.max_kv_slots for one in self.requests())
        blocks = -(-slots // self.block_size) + self.spare_blocks + self.kept_back + more_blocks
        budget = slots + self.spare_tokens
        watermark = (self.kept_back + 0.5) / blocks if self.kept_back else 0.0
        return machine(budget, min(self.seats, budget), blocks, self.block_size, watermark=watermark, policy=policy)


sizes = st.tuples(st.integers(1, 8), st.integers(1, 9), st.integers(0, 6), st.integers(0, 2))
loads = st.builds(
    Load,
    sizes=st.lists(sizes, min_size=2, max_size=8),
    block_size=st.integers(1, 4),
    spare_blocks=st.integers(0, 3),
    kept_back=st.integers(0, 1),
    spare_tokens=st.integers(0, 6),
    seats=st.integers(1, 5),
)


class TestRandomTightLoads:
    """Properties that hold whatever comes: Run checks budget, seats, watermark, queues and memory after every step."""

    @pytest.mark.parametrize("policy", POLICIES)
    @given(load=loads)
    def test_everything_that_was_accepted_finishes(self, policy, load):
        run = run_to_end(load.machine(policy), load.requests())
        where = f"{policy}, {len(load.sizes)} requests"
        expect(where, "refused", run.refused, {}, "each of them fits when it is alone", DOOR)
        cause = "each finishes once, in `update`"
        expect(where, "finished", len(run.finished), len(load.sizes), cause, PASSES)
        expect(where, "free blocks", run.scheduler.pool.num_free, run.scheduler.pool.num_blocks, "all come back", FULL)

    @given(load=loads)
    def test_tokens_never_depend_on_the_schedule(self, load):
        outputs = {}
        schedulers = {policy: load.machine(policy) for policy in POLICIES}
        schedulers |= {"ample": load.machine("fcfs", 100)}
        schedulers |= {"s08": StaticBatcher(load.seats), "s09": ContinuousBatcher(load.seats)}
        for name, scheduler in schedulers.items():
            requests = load.requests()
            Engine(scheduler, FakeRunner(), requests).run(5000)
            outputs[name] = [one.output for one in requests]
        want = [lone_output(one) for one in load.requests()]
        cause = "a token was lost or made twice: an evicted request keeps its output and recomputes all of it"
        for name, got in outputs.items():
            expect(f"scheduler {name}", "outputs", got, want, cause, BACK)

    @pytest.mark.parametrize("policy", POLICIES)
    @given(load=loads, aborts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 7), st.booleans()), max_size=4))
    def test_nothing_is_lost_when_requests_are_aborted(self, policy, load, aborts):
        run = Run(load.machine(policy), load.requests())
        while run.arrivals or run.scheduler.waiting or run.scheduler.running:
            batch = None
            for step, index, inside in aborts:
                if step == run.now:
                    batch = (batch or run.schedule()) if inside else batch
                    run.scheduler.abort(f"R{index}")
                    check_conservation(run.scheduler, run.requests, f"R{index} was aborted at step {step + 1}")
            run.update(batch or run.schedule())
            if run.now > 500:
                run.stuck(batch, 1)
        got = [one.id for one in run.requests if one.finish_reason is None]
        expect("after the run", "still live", got, [], "everything ends, aborted or not", PASSES)

    @given(load=loads, blocks=st.integers(1, 6), budget=st.integers(1, 12))
    def test_exactly_what_can_never_fit_is_refused(self, load, blocks, budget):
        scheduler = machine(budget, 1, blocks, load.block_size, watermark=0.2)
        run = run_to_end(scheduler, load.requests())
        usable = (blocks - blocks // 5) * load.block_size
        want = [one.id for one in load.requests() if one.max_kv_slots > min(usable, budget)]
        cause = "prompt + max_tokens - 1 slots against the blocks above the watermark and the token budget"
        expect(f"budget {budget}, {usable} usable slots", "refused", sorted(run.refused), sorted(want), cause, DOOR)


FIELD_CASES = [
    pytest.param(name, case, id=name)
    for name, case in read_workloads(Path(__file__).parent / "data" / "field_cases.json")
    if case.get("scheduler") == "s10"
]


class TestFieldCases:
    """Small inputs distilled from public bug reports against real engines: tests/data/field_cases.json."""

    @pytest.mark.parametrize("name, case", FIELD_CASES)
    def test_a_field_case_replays_with_the_right_numbers(self, name, case):
        got, want = replay(case, Scheduler), case["expect"]
        where, cause = f"field case {name}: {case['title']}", case["right"]
        for key, value in want.items():
            if key == "schedule":
                expect(where, "schedule", got.schedule[: len(value)], value, cause, DOOR)
            elif key != "requests":
                expect(where, key, got.totals[key], value, cause, DOOR)
        for id, row in want["requests"].items():
            expect(f"{where}, request {id}", "its row", got.requests[id], row, cause, DOOR)

    def test_a_duplicate_id_leaves_the_first_untouched(self):
        """C15: add, step, add again (refused), run to the end, add again (accepted)."""
        scheduler, first = machine(), request("A", 4, 4)
        scheduler.add(first)
        batch = scheduler.schedule()
        scheduler.update(batch, sampled(batch))
        with pytest.raises(DuplicateRequest) as error:
            scheduler.add(request("A", 4, 4))
        expect("A is live", "a ValueError", isinstance(error.value, (ValueError, CourseError)), True, "typed errors", DOOR)
        while scheduler.running:
            batch = scheduler.schedule()
            scheduler.update(batch, sampled(batch))
        expect("A has finished", "its output", first.output, lone_output(first), "the first is untouched", DOOR)
        expect("A has finished", "free blocks", scheduler.pool.num_free, 5, "the first is untouched", DOOR)
        scheduler.add(request("A", 4, 4))


class TestAgedPriorityExtension:
    """Extension: AgedPriority.key."""

    def test_waiting_improves_a_priority(self):
        old, urgent = request("old", 3, 6, priority=10), request("new", 3, 6, priority=0, arrival=21 * 10**9)
        policy = AgedPriority(0.5)
        got = policy.key(old) < policy.key(urgent)
        cause = "after 21 s at 0.5 points/s it has gained 10.5: 10 against 0 + 0.5 * 21. Later arrivals count as larger"
        expect("old: priority 10 at 0 s; new: 0 at 21 s", "old goes first", got, True, cause, NEXT)

    def test_a_short_wait_does_not_overtake(self):
        old, urgent = request("old", 3, 6, priority=10), request("new", 3, 6, priority=0, arrival=19 * 10**9)
        policy = AgedPriority(0.5)
        got = policy.key(old) < policy.key(urgent)
        expect("old: priority 10 at 0 s; new: 0 at 19 s", "old goes first", got, False, "9.5 points are less than 10", NEXT)

    def test_the_key_is_the_aged_priority_and_the_arrival(self):
        key = AgedPriority(2.0).key(request("A", 3, 6, priority=1, arrival=3 * 10**9))
        cause = "(priority + points_per_second * arrival in seconds, arrival_ns): what all share, the present, is left out"
        expect("priority 1 at 3 s, 2 points/s", "key()", tuple(key), (7.0, 3 * 10**9), cause, NEXT)

    def test_without_aging_it_is_plain_priority(self):
        key = AgedPriority(0.0).key(request("A", 3, 6, priority=4, arrival=9))
        expect("0 points/s", "key()", tuple(key), (4, 9), "nothing is added", NEXT)

    def test_nobody_starves_behind_a_stream_of_urgent_ones(self):
        second = 10**9
        stream = [request(f"U{i}", 2, 2, arrival=i * second) for i in range(40)]
        old = request("old", 2, 2, priority=10)
        limits = dict(max_num_batched_tokens=8, max_num_seqs=1, num_blocks=9, block_size=4, policy="priority")
        scheduler = Scheduler(Config(**limits), AgedPriority(1.0))
        report = Engine(scheduler, FakeRunner(step_ns=second), [old, *stream]).run(1000)
        waited = next(row.ttft_ns for row in report.rows if row.id == "old") // second
        cause = "10 points at 1 point/s: nobody who arrives after 10 s goes first, the 10 before take 2 s each"
        expect(
            "an urgent one every second, one seat",
            "old waits at most 25 s",
            waited <= 25,
            True,
            f"{cause}: {waited} s",
            NEXT,
        )


class TestPredictTtftExtension:
    """Extension: Scheduler.predict_ttft_ms, and add's refusal beyond a target."""

    class Price:
        """A millisecond a token, and a tenth for each token of KV."""

        def step_ns(self, num_tokens, kv_tokens):
            return num_tokens * 1_000_000 + kv_tokens * 100_000

    def machine(self, policy="fcfs", **options):
        scheduler = machine(budget=10, blocks=99, policy=policy, **options)
        scheduler.cost = self.Price()
        return scheduler

    def predict(self, where, scheduler, one, want, cause):
        expect(where, "predict_ttft_ms()", scheduler.predict_ttft_ms(one), want, cause, NEXT)

    def newcomer(self, prompt, **options):
        one = request("N", prompt, 1, **options)
        one.order = 99
        return one

    def test_an_empty_queue_costs_one_step(self):
        cause = "ceil(4 / 10) = 1 step at the price of a full one: cost.step_ns(10, 0) = 10 ms"
        self.predict("nobody waits, prompt 4, budget 10", self.machine(), self.newcomer(4), 10.0, cause)

    def test_who_waits_goes_first(self):
        scheduler = self.machine()
        queue(scheduler, request("A", 9, 1), request("B", 8, 1))
        cause = "9 + 8 + 4 = 21 tokens need 3 steps of 10"
        self.predict("A9 and B8 wait", scheduler, self.newcomer(4), 30.0, cause)

    def test_steps_are_whole(self):
        scheduler = self.machine()
        queue(scheduler, request("A", 6, 1))
        self.predict("A6 waits, N4", scheduler, self.newcomer(4), 10.0, "10 tokens are exactly one step")
        self.predict("A6 waits, N5", scheduler, self.newcomer(5), 20.0, "11 tokens are two steps: round up")

    def test_an_evicted_one_needs_its_outputs_again(self):
        scheduler = self.machine()
        queue(scheduler, request("A", 6, 9, made=5))
        self.predict("A waits with 6 + 5 tokens", scheduler, self.newcomer(4), 20.0, "num_tokens, not the prompt: 11 + 4")

    def test_only_who_goes_first_counts(self):
        scheduler = self.machine("shortest")
        queue(scheduler, request("A", 9, 1), request("B", 2, 1), request("C", 5, 1))
        cause = "under shortest-first B2 and C5 (its key is equal, it came earlier) go first, A9 does not: 2 + 5 + 5 = 12"
        self.predict("A9, B2 and C5 wait, N5", scheduler, self.newcomer(5), 20.0, cause)

    def test_beyond_the_target_add_refuses(self):
        scheduler = self.machine()
        cause = "nobody waits yet, one step of 10 ms"
        self.predict("before anybody is added", scheduler, self.newcomer(9), 10.0, cause)
        scheduler.ttft_target_ms = 20.0
        got = []
        for name in "ABC":
            try:
                scheduler.add(request(name, 9, 1))
                got.append("accepted")
            except RequestRefused as error:
                got.append((error.reason, error.needed, error.available))
        want = ["accepted", "accepted", ("rejected_slo", 30, 20)]
        cause = "A's and B's tokens wait already: 27 tokens need 3 steps of 10 ms. Does the newcomer have its order yet?"
        expect("A9, B9, C9 arrive together, target 20 ms", "add()", got, want, cause, DOOR)
        expect(
            "C was refused", "waiting, live", (waiting(scheduler), sorted(scheduler._live)), (["A", "B"],) * 2, cause, DOOR
        )

    def test_without_a_target_nobody_is_refused(self):
        scheduler = self.machine()
        for name in "ABC":
            scheduler.add(request(name, 9, 1))
        expect("no target", "waiting", waiting(scheduler), ["A", "B", "C"], "ask only if there is a target", DOOR)


class TestThrashMeterExtension:
    """Extension: ThrashMeter.observe, and why_wait's back-pressure."""

    def check(self, where, meter, steps, want, cause):
        got = [meter.observe(*step) for step in steps]
        expect(f"{where}: steps {steps}", "observe() returned", got, want, cause, FULL)

    def test_an_engine_that_repeats_nothing_does_not_thrash(self):
        self.check("(thrown away, computed)", ThrashMeter(4), [(0, 10), (0, 10)], [False, False], "nothing was thrown away")

    def test_the_ratio_is_thrown_away_to_computed_for_the_first_time(self):
        meter = ThrashMeter(4)
        meter.observe(5, 30)
        cause = "rec / (computed - rec) = 5 / 25, not 5 / 30: what is computed again is not new"
        expect("5 thrown away, 30 computed", "rec_new", meter.rec_new, 0.2, cause, FULL)

    def test_it_turns_on_above_high_and_off_only_at_low(self):
        steps = [(2, 12), (3, 13), (1, 9), (1, 11), (3, 15)]
        want = [False, True, True, False, False]
        cause = "ratios 0.2, 0.3, 0.125, 0.1, 0.25 … a window of one: on above 0.2, off at 0.1, between them as it was"
        self.check("window of 1", ThrashMeter(1), steps[:4], want[:4], cause)

    def test_between_the_thresholds_it_stays_what_it_was(self):
        meter = ThrashMeter(1)
        cause = "hysteresis: with one threshold it would flicker"
        self.check("window of 1", meter, [(3, 23)], [False], cause)
        self.check("window of 1", meter, [(9, 19), (3, 23)], [True, True], cause)
        self.check("window of 1", meter, [(0, 23), (3, 23)], [False, False], cause)

    def test_only_the_last_steps_count(self):
        meter = ThrashMeter(2)
        cause = "a window of 2: the bad step is forgotten two steps later"
        self.check("window of 2", meter, [(9, 19), (0, 9), (0, 9)], [True, True, False], cause)

    def test_a_step_that_made_nothing_new_is_no_division_by_zero(self):
        meter = ThrashMeter(2)
        self.check("window of 2", meter, [(5, 5)], [True], "at least 1 in the denominator: 5 / 1")
        expect("5 thrown away, 5 computed", "rec_new", meter.rec_new, 5.0, "at least 1 in the denominator: 5 / 1", FULL)
        self.check("window of 2", ThrashMeter(2), [(0, 0)], [False], "at least 1 in the denominator: 0 / 1")

    def meter(self, thrashing: bool) -> ThrashMeter:
        """A meter in this state by way of `observe`: whoever leaves the extension out leaves back-pressure out too."""
        meter = ThrashMeter(1)
        expect("a step", "observe()", meter.observe(9 if thrashing else 0, 19), thrashing, "9 / 10 is above 0.2", FULL)
        return meter

    def test_back_pressure_holds_newcomers_back_while_others_run(self):
        scheduler = machine(blocks=9)
        scheduler.meter = self.meter(thrashing=True)
        seat(scheduler, request("A", 3, 6, made=1))
        wait = scheduler.why_wait(request("B", 1, 1), 8)
        cause = 'the last rule: "thrash", those who run, 0'
        expect("A runs, the meter says thrashing", "why_wait(B)", wait and tuple(wait)[:3], ("thrash", 1, 0), cause, JOIN)

    def test_without_thrash_there_is_no_back_pressure(self):
        scheduler = machine(blocks=9)
        scheduler.meter = self.meter(thrashing=False)
        seat(scheduler, request("A", 3, 6, made=1))
        cause = "ask `self.meter.thrashing`, not whether there is a meter"
        got = scheduler.why_wait(request("B", 1, 1), 8)
        expect("A runs, the meter is calm", "why_wait(B)", got, None, cause, JOIN)

    def test_back_pressure_lets_returners_in(self):
        scheduler, b = machine(blocks=9), request("B", 1, 3, made=1)
        scheduler.meter = self.meter(thrashing=True)
        seat(scheduler, request("A", 3, 6, made=1))
        b.num_preemptions = 1
        cause = "it holds back who never ran; who was evicted has a user waiting in the middle of a sentence"
        expect("B was evicted before", "why_wait(B)", scheduler.why_wait(b, 8), None, cause, JOIN)

    def test_back_pressure_never_holds_an_idle_machine(self):
        scheduler = machine()
        scheduler.meter = self.meter(thrashing=True)
        cause = "needed is the number of those who run: with 0 nobody is held back, or the engine would wait for itself"
        expect(
            "nobody runs, the meter says thrashing",
            "why_wait(B)",
            scheduler.why_wait(request("B", 1, 1), 8),
            None,
            cause,
            JOIN,
        )

    @pytest.mark.parametrize("policy", POLICIES)
    @given(load=loads)
    def test_back_pressure_cannot_deadlock(self, policy, load):
        scheduler = load.machine(policy)
        scheduler.meter = ThrashMeter(3, 0.05, 0.01)
        run = run_to_end(scheduler, load.requests())
        expect(policy, "finished", len(run.finished), len(load.sizes), "everything that was accepted finishes", JOIN)

"""s13: seats, aging, shares, admission modes, answers in time. Exact small cases, then traces, then random tight loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.config import Config
from kit.errors import BadConfig, RequestRefused
from kit.replay import replay
from kit.report import Row
from kit.workloads import read_workloads
from s08_static_batching import Batch
from s13_fairness import AgingPriority, FairScheduler, FairShare, TokenRatio, aging_bound, goodput
from support import Run, expect, expect_steps, mismatch, queue, request, run_to_end, sampled, seat

SEATS = "s13_fairness/Taking a seat"
AGING = "s13_fairness/Waiting counts"
SHARES = "s13_fairness/Turns between tenants"
BLOCKED = "s13_fairness/A blocked head"
PROMISE = "s13_fairness/How much to promise"
TIME = "s13_fairness/In time"

URGENT = {"policy": "priority", "preempt_for_priority": True}


def machine(budget: int = 16, seats: int = 2, blocks: int = 40, share: FairShare | None = None, **options) -> FairScheduler:
    """Two seats, blocks of 4, no watermark, unless told otherwise."""
    limits = dict(max_num_batched_tokens=budget, max_num_seqs=seats, num_blocks=blocks, block_size=4)
    scheduler = FairScheduler(Config(**limits, **{"watermark": 0.0, **options}), share)
    scheduler.batch = Batch()
    return scheduler


def of(tenant: str, *args, **options):
    one = request(*args, **options)
    one.tenant = tenant
    return one


def ids(requests) -> list[str]:
    return [one.id for one in requests]


class TestGate:
    """Exercise 1: FairScheduler.gate."""

    def check(self, where, admission, want, cause, other=()):
        scheduler = machine(blocks=40, seats=4, admission=admission)
        seat(scheduler, *other)
        one = request("N", 10, 7)
        queue(scheduler, one)
        expect(f"{where}, admission {admission}", "gate(N, 4)", scheduler.gate(one, 4), want, cause, PROMISE)

    def test_a_chunk(self):
        self.check("N: prompt 10, 7 outputs, first chunk 4", "chunk", 1, "the blocks of the first chunk: 4 tokens")

    def test_the_whole_prompt(self):
        self.check("N: prompt 10, 7 outputs", "full_prompt", 3, "the blocks of all that it knows: 10 tokens")

    def test_to_completion(self):
        self.check("N: prompt 10, 7 outputs", "to_completion", 4, "10 + 7 - 1 = 16 slots: the last token is never stored")

    def test_what_is_promised_to_those_who_run_is_not_free(self):
        cause = "A holds 1 block and may come to hold 3 (4 + 9 - 1 = 12 slots): 4 for N and 2 promised to A"
        self.check("A runs: prompt 4, 9 outputs, 1 made", "to_completion", 4 + 2, cause, [request("A", 4, 9, made=1)])

    def test_an_evicted_one_lacks_all_of_it(self):
        scheduler, one = machine(admission="to_completion"), request("N", 10, 7, made=3)
        queue(scheduler, one)
        expect(
            "N was evicted with 3 outputs",
            "gate(N, 13)",
            scheduler.gate(one, 13),
            4,
            "16 slots, none of them held",
            PROMISE,
        )

    def test_an_estimate_promises_less(self):
        scheduler = machine(blocks=40, seats=4, admission="to_completion")
        scheduler.estimate = TokenRatio(start=0.5)
        seat(scheduler, request("A", 4, 17, made=1))
        one = request("N", 10, 23)
        queue(scheduler, one)
        cause = "use `slots` and `promised`: N 10 + half of 22 = 21 slots, 6 blocks; A 5 + half of 15 = 13 slots, 4 blocks, less its 1"
        expect("an estimate of 0.5", "gate(N, 10)", scheduler.gate(one, 10), 6 + 3, cause, PROMISE)


class TestSeatFor:
    """Exercise 2: FairScheduler.seat_for."""

    def full(self, priorities=(5, 5, 3), newcomer=0, **options):
        """A, B, C run in all three seats, N waits."""
        scheduler = machine(seats=3, **{**URGENT, **options})
        seat(
            scheduler,
            *(request(name, 3, 9, made=1, priority=p, arrival=i) for i, (name, p) in enumerate(zip("ABC", priorities))),
        )
        one = request("N", 4, 3, priority=newcomer, arrival=9)
        queue(scheduler, one)
        return scheduler, one

    def ask(self, where, scheduler, one, budget, want, cause):
        got = scheduler.seat_for(one, budget)
        expect(where, "seat_for(N)", getattr(got, "id", got), want, cause, SEATS)

    def test_the_least_urgent_gives_its_seat(self):
        where = "A5 B5 C3 run (priorities, in order of arrival), N0 waits"
        cause = "the largest (priority, arrival_ns, order): of A and B the later one. Larger is less urgent here"
        self.ask(where, *self.full(), 9, "B", cause)

    def test_equals_keep_their_seats(self):
        where = "A5 B5 C5 run, N5 waits"
        cause = "strictly larger only: among equals the victim would take the seat back in the next step, for ever"
        self.ask(where, *self.full((5, 5, 5), 5), 9, None, cause)

    def test_the_more_urgent_keep_theirs(self):
        self.ask("A0 B0 C1 run, N2 waits", *self.full((0, 0, 1), 2), 9, None, "nobody who runs is less urgent than N")

    def test_arrival_and_order_settle_ties(self):
        scheduler = machine(seats=2, **URGENT)
        seat(
            scheduler, request("A", 3, 9, made=1, priority=5, arrival=4), request("B", 3, 9, made=1, priority=5, arrival=4)
        )
        one = request("N", 4, 3, arrival=9)
        queue(scheduler, one)
        self.ask("A5 and B5 came together, A was added first", scheduler, one, 9, "B", "ties go by the order of `add`")

    def test_raw_priorities_decide_even_with_aging(self):
        scheduler, one = self.full((5, 4, 4), 0, aging_per_step=100)
        cause = "seats are taken by `priority` as it was given; aging orders those who wait"
        self.ask("A5 B4 C4 run, N0 waits; 100 points a unit", scheduler, one, 9, "A", cause)

    def test_what_comes_back_counts(self):
        scheduler, one = self.full()
        for other in scheduler.running:
            scheduler.compute(other, 1)
        cause = "B's token of this step comes back to the budget: 0 + 1 is enough for a first chunk"
        self.ask("A5 B5 C3 have a token of this step, 0 left", scheduler, one, 0, "B", cause)

    def test_no_seat_is_taken_in_vain_for_tokens(self):
        cause = "N needs a token, none is left, and B's has not been given: evicting B would help nobody"
        self.ask("A5 B5 C3 run, nothing of the budget is left", *self.full(), 0, None, cause)

    def test_no_seat_is_taken_in_vain_for_blocks(self):
        scheduler, _ = self.full(blocks=5, admission="full_prompt")
        big = request("M", 17, 3, arrival=9)
        queue(scheduler, big)
        cause = "2 blocks are free and B gives back 1; M needs 5. Evicting B would help nobody: ask `fits_without`"
        got = scheduler.seat_for(big, 16)
        expect("A5 B5 C3 run, M (17 tokens) waits", "seat_for(M)", got and got.id, None, cause, SEATS)

    def test_the_victims_blocks_count(self):
        scheduler, _ = self.full(blocks=5, admission="full_prompt")
        fits = request("M", 12, 3, arrival=9)
        queue(scheduler, fits)
        cause = "2 blocks are free and B gives back 1: M's 3 are there"
        got = scheduler.seat_for(fits, 16)
        expect("A5 B5 C3 run, M (12 tokens) waits", "seat_for(M)", got and got.id, "B", cause, SEATS)


class TestAdmitPass:
    """Exercise 3: FairScheduler.admit_pass."""

    def test_who_finds_room_joins(self):
        scheduler = machine(seats=3)
        queue(scheduler, *(request(name, 4, 3) for name in "ABCD"))
        left = scheduler.admit_pass(16)
        got = (ids(scheduler.running), left, tuple(scheduler.batch.head or ())[:3])
        cause = "one after another until why_wait has a reason; that reason is batch.head"
        expect(
            "A, B, C and D wait, 3 seats, 16 tokens",
            "running, left, head",
            got,
            (["A", "B", "C"], 4, ("seats", 4, 3)),
            cause,
            SEATS,
        )

    def urgent(self, **options):
        scheduler = machine(seats=2, **{**URGENT, **options})
        a, b = (request(name, 4, 9, made=2, priority=5, arrival=i) for i, name in enumerate("AB"))
        seat(scheduler, a, b)
        scheduler.compute(a, 1)
        scheduler.compute(b, 1)
        queue(scheduler, request("N", 4, 3, arrival=7), request("O", 4, 3, arrival=8))
        return scheduler, a, b

    def test_exactly_one_takes_a_seat(self):
        scheduler, *_ = self.urgent()
        scheduler.admit_pass(14)
        got = (ids(scheduler.running), ids(scheduler.batch.preempted), ids(scheduler.batch.admitted))
        cause = "B makes room for N; then the pass stops, although A is less urgent than O as well"
        expect(
            "A5 and B5 run, N0 and O0 wait", "running, preempted, admitted", got, (["A", "N"], ["B"], ["N"]), cause, SEATS
        )

    def test_the_victims_token_returns_to_the_budget(self):
        scheduler, *_ = self.urgent()
        left = scheduler.admit_pass(14)
        cause = "14 and B's token back are 15, N's prompt takes 4: `budget + self.preempt(victim)` before it joins"
        expect("14 tokens left, B has one of this step", "admit_pass() returned", left, 11, cause, SEATS)

    def test_the_victims_token_was_never_stored(self):
        scheduler, _, b = self.urgent()
        scheduler.admit_pass(14)
        cause = "5 tokens had been stored before this step; the one of this step is not computed, so nothing of it is lost"
        got = (b.recomputed_tokens, scheduler.batch.thrown_away, b.num_computed_tokens)
        expect(
            "B had stored 5, and has a token of this step",
            "recomputed, thrown away, computed",
            got,
            (5, 5, 0),
            cause,
            SEATS,
        )

    def test_the_victim_waits_in_its_keys_place(self):
        scheduler, *_ = self.urgent()
        scheduler.admit_pass(14)
        cause = "a preempted request goes where its key takes it: behind O, which is more urgent"
        expect("B was put out", "waiting", ids(scheduler.waiting), ["O", "B"], cause, SEATS)
        head = tuple(scheduler.batch.head or ())[:3]
        cause = "whoever still waits has a reason: nobody else joins in a step that evicts"
        expect("B was put out, O waits", "batch.head", head, ("eviction", 1, 0), cause, SEATS)

    def test_without_the_option_nobody_is_put_out(self):
        scheduler, *_ = self.urgent(preempt_for_priority=False)
        scheduler.admit_pass(14)
        got = (ids(scheduler.batch.preempted), tuple(scheduler.batch.head or ())[:3])
        expect(
            "A5 and B5 run, N0 waits",
            "preempted, head",
            got,
            ([], ("seats", 3, 2)),
            "only with preempt_for_priority",
            SEATS,
        )

    def test_only_seats_are_taken(self):
        scheduler = machine(budget=64, seats=4, blocks=6, admission="full_prompt", **URGENT)
        seat(scheduler, *(request(name, 7, 9, made=1, priority=5) for name in "AB"))
        queue(scheduler, request("N", 12, 3))
        scheduler.admit_pass(62)
        got = (ids(scheduler.batch.preempted), tuple(scheduler.batch.head or ())[:3])
        cause = "the reason is blocks, and a seat is free: taking somebody's memory is the decode pass's business"
        expect("A5 and B5 hold 4 of 6 blocks, N0 needs 3", "preempted, head", got, ([], ("blocks", 3, 2)), cause, SEATS)

    def blocked(self, skip=True, budget=64):
        """A and B run and hold 4 of 6 blocks; C needs 3, D and E need 1 each."""
        scheduler = machine(budget=budget, seats=4, blocks=6, admission="full_prompt", skip_blocked=skip)
        seat(scheduler, *(request(name, 7, 9, made=1) for name in "AB"))
        queue(scheduler, request("C", 12, 3), request("D", 4, 3), request("E", 3, 3))
        return scheduler

    def test_a_head_without_blocks_is_passed_over(self):
        scheduler = self.blocked()
        scheduler.admit_pass(62)
        got = (ids(scheduler.batch.admitted), ids(scheduler.waiting))
        cause = "with skip_blocked the pass goes on behind a request that lacks blocks"
        expect(
            "C needs 3 blocks, 2 are free, D and E need 1 each",
            "admitted, waiting",
            got,
            (["D", "E"], ["C"]),
            cause,
            BLOCKED,
        )
        head = tuple(scheduler.batch.head or ())[:3]
        expect(
            "C was passed over", "batch.head", head, ("blocks", 3, 2), "the first reason of the pass is the head's", BLOCKED
        )

    def test_without_the_option_everybody_waits_for_the_head(self):
        scheduler = self.blocked(skip=False)
        scheduler.admit_pass(62)
        cause = "nobody overtakes the head unless skip_blocked says so"
        expect("C needs 3 blocks, 2 are free", "admitted", ids(scheduler.batch.admitted), [], cause, BLOCKED)

    def test_no_other_reason_lets_anybody_pass(self):
        scheduler = machine(budget=8, seats=4, blocks=40, skip_blocked=True, chunked_prefill=False)
        queue(scheduler, request("C", 7, 2), request("D", 2, 3))
        scheduler.admit_pass(6)
        cause = "C lacks tokens, not blocks: in the next step it would get them, had D not taken its place again"
        expect("C needs 7 tokens, 6 are left, D needs 2", "admitted", ids(scheduler.batch.admitted), [], cause, BLOCKED)

    def test_nobody_passes_over_a_swapped_request(self):
        scheduler = machine(budget=64, seats=4, blocks=6, cpu_blocks=6, skip_blocked=True)
        a, b, c = (request(name, 7, 9, made=1) for name in "ABC")
        seat(scheduler, a, b, c)
        scheduler.preempt(c)
        scheduler.pool.grow(a, 2)
        queue(scheduler, request("D", 2, 3))
        scheduler.batch = Batch()
        scheduler.admit_pass(62)
        cause = "who is swapped out goes before everybody else: nobody joins while it can't return"
        expect(
            "C is swapped out and needs 2 blocks, 1 is free; D needs 1",
            "admitted",
            ids(scheduler.batch.admitted),
            [],
            cause,
            BLOCKED,
        )

    def test_the_first_reason_of_the_pass_is_kept(self):
        scheduler = machine(budget=64, seats=4, blocks=6, admission="full_prompt", skip_blocked=True)
        seat(scheduler, *(request(name, 7, 9, made=1) for name in "AB"))
        queue(scheduler, request("C", 12, 3), request("D", 16, 3))
        scheduler.admit_pass(62)
        cause = "the first reason of the pass holds, that of the head: D's is not noted in its place"
        head = tuple(scheduler.batch.head or ())[:3]
        where = "C needs 3 blocks and D 4, 2 are free; both are passed over"
        expect(where, "batch.head", head, ("blocks", 3, 2), cause, BLOCKED)

    def test_a_victims_reason_does_not_replace_it(self):
        scheduler = machine(budget=64, seats=3, blocks=8, admission="full_prompt", skip_blocked=True, **URGENT)
        seat(scheduler, *(request(name, 7, 9, made=1, priority=5, arrival=i) for i, name in enumerate("AB")))
        waiting = zip("CDE", (20, 4, 4), (7, 8, 9))
        queue(scheduler, *(request(name, prompt, 3, arrival=t) for name, prompt, t in waiting))
        scheduler.admit_pass(62)
        where = "A5 and B5 run; C0 needs 5 blocks, 4 are free; D0 takes the last seat, E0 takes B's"
        got = (ids(scheduler.batch.admitted), ids(scheduler.batch.preempted))
        expect(
            where,
            "admitted, preempted",
            got,
            (["D", "E"], ["B"]),
            "E finds all seats taken, B's by a less urgent one",
            SEATS,
        )
        cause = "C's reason was noted first: the victim's counts only if there is none before it"
        head = tuple(scheduler.batch.head or ())[:3]
        expect(where, "batch.head", head, ("blocks", 5, 4), cause, BLOCKED)


class TestCharge:
    """Exercise 4: FairShare.charge."""

    def check(self, where, steps, want, cause, prompt=6):
        """steps: num_computed_tokens at each charge."""
        policy, one = FairShare(), of("a", "A", prompt, 9)
        for computed in steps:
            one.num_computed_tokens = computed
            policy.charge(one)
        expect(where, "served", policy.served.get("a", 0), want, cause, SHARES)

    def test_a_token_of_the_prompt_counts_one(self):
        self.check("a prompt of 6 computed at once", [6], 6, "six tokens of the prompt")

    def test_chunks_add_up(self):
        self.check("computed in pieces: 2, then 4, then 6", [2, 4, 6], 6, "only what is new since the last charge")

    def test_an_output_counts_output_weight(self):
        self.check(
            "a prompt of 6, then two outputs stored",
            [6, 7, 8],
            6 + 2 * 2,
            "an output token costs 2: it needs a step of its own",
        )

    def test_a_charge_across_the_end_of_the_prompt(self):
        self.check("from 4 to 8 of a prompt of 6", [4, 8], 4 + 2 + 2 * 2, "two of the prompt at 1, two behind it at 2")

    def test_what_is_computed_again_was_paid_for(self):
        cause = "an eviction is the engine's doing: its tokens counted when they were computed first. Keep the furthest"
        self.check("8 computed, evicted, 5, then 8, then 9 computed", [8, 0, 5, 8, 9], 6 + 2 * 3, cause)

    def test_tenants_have_counters_of_their_own(self):
        policy = FairShare()
        for tenant, computed in (("a", 3), ("b", 5), ("a", 4)):
            one = of(tenant, "A", 9, 2)
            one.num_computed_tokens = computed
            policy.charge(one)
        expect(
            "a: 3 and 4, b: 5", "served", policy.served, {"a": 7, "b": 5}, "add to the counter of request.tenant", SHARES
        )

    def test_a_step_charges_what_it_computes(self):
        policy = FairShare()
        scheduler = machine(share=policy)
        scheduler.add(of("a", "A", 6, 3))
        batch = scheduler.schedule()
        expect("a prompt of 6 in its first step", "served", policy.served, {"a": 6}, "as soon as it is decided", SHARES)
        scheduler.update(batch, sampled(batch))
        scheduler.schedule()
        expect("one output fed", "served", policy.served, {"a": 8}, "2 for an output", SHARES)
        with pytest.raises(BadConfig):  # a share takes no seats: two rules, one seat
            machine(share=policy, **URGENT)


class TestArrive:
    """Exercise 5: FairShare.arrive."""

    def check(self, where, served, tenant, waiting, want, cause, left_last=None):
        policy = FairShare()
        policy.served, policy.left_last = dict(served), left_last
        policy.arrive(tenant, waiting)
        expect(where, f"served[{tenant}]", policy.served.get(tenant, 0), want, cause, SHARES)

    def test_idle_time_earns_no_credit(self):
        cause = "lifted to the smallest of those who wait: else it would have the machine to itself for 900 tokens"
        self.check(
            "a has had 100, b (1,000) and c (1,500) wait", {"a": 100, "b": 1000, "c": 1500}, "a", ["b", "c"], 1000, cause
        )

    def test_a_new_tenant_begins_with_the_others(self):
        self.check("a is new, b (1,000) waits", {"b": 1000}, "a", ["b"], 1000, "a missing counter is 0, and is lifted")

    def test_a_counter_never_falls(self):
        self.check(
            "a has had 2,000, b (1,000) waits", {"a": 2000, "b": 1000}, "a", ["b"], 2000, "lifted only, never lowered"
        )

    def test_only_those_who_wait_count(self):
        cause = "c has nobody waiting, so its counter stands still: it is not a measure"
        self.check("a 100, b (1,000) waits, c (10) is idle", {"a": 100, "b": 1000, "c": 10}, "a", ["b"], 1000, cause)

    def test_an_empty_queue_is_no_reset(self):
        cause = "b was the last to leave the queue, at 5,000: from there a begins, or b would starve for 5,000 tokens"
        self.check("nobody waits, b left last", {"b": 5000}, "a", [], 5000, cause, left_last="b")

    def test_the_very_first_begins_at_zero(self):
        self.check("nobody has ever waited", {}, "a", [], 0, "no counter to go by")


class TestFairQueue:
    """The queue of a fair share: given, and held to its word."""

    def test_the_tenant_served_least_is_next(self):
        policy = FairShare()
        scheduler = machine(budget=64, seats=4, share=policy)
        for one in (*(of("flood", f"F{name}", 4, 3) for name in "abcd"), of("light", "L", 4, 3), of("third", "T", 4, 3)):
            scheduler.add(one)
        got = ids(scheduler.schedule().tokens)
        cause = "each admission is charged at once, so the next is another tenant's: F, L, T, then F again"
        expect(
            "four of flood, then one of light and of third; 4 seats",
            "schedule() computed",
            got,
            ["Fa", "L", "T", "Fb"],
            cause,
            SHARES,
        )

    def test_a_tenant_keeps_its_own_order(self):
        scheduler = machine(budget=64, seats=1, share=FairShare())
        for name in "ABC":
            scheduler.add(of("a", name, 2, 1))
        got = []
        while scheduler.waiting or scheduler.running:
            batch = scheduler.schedule()
            got += ids(batch.tokens)
            scheduler.update(batch, sampled(batch))
        expect(
            "A, B and C of one tenant", "served", got, ["A", "B", "C"], "first come, first served within a tenant", SHARES
        )

    @given(moves=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), min_size=1, max_size=40))
    def test_the_head_is_that_of_the_tenant_with_the_lowest_counter(self, moves):
        policy = FairShare()
        queue, waits = machine(share=policy).waiting, []
        for i, (tenant, cost) in enumerate(moves):
            if cost < 6 or not waits:
                one = of(tenant, f"R{i}", 3, 3)
                one.order = i + 1
                queue.push(one)
                waits.append(one)
            else:
                policy.served[tenant] = policy.served.get(tenant, 0) + cost
                want = min(waits, key=lambda one: (policy.served.get(one.tenant, 0), one.order))
                cause = "the tenant served least, and of it the first come"
                expect(f"after {i} moves", "pop()", queue.pop().id, want.id, cause, SHARES)
                waits.remove(want)
        got = (len(queue), sorted(ids(queue)))
        expect("those who are left", "len, ids", got, (len(waits), sorted(ids(waits))), "nobody gets lost", SHARES)


def row(ttft_ms=100.0, tpot_ms=10.0, tokens=11, reason="length") -> Row:
    first = round(ttft_ms * 1e6)
    return Row("A", 5, tokens, 0, 0, first, first + round((tokens - 1) * tpot_ms * 1e6), reason, 0, 0, 0, ())


class TestGoodput:
    """Exercise 6: goodput."""

    def check(self, where, rows, want, cause):
        expect(f"{where}; targets 100 ms and 10 ms", "goodput()", goodput(rows, 100, 10), want, cause, TIME)

    def test_exactly_on_the_target_is_in_time(self):
        self.check("TTFT 100, TPOT 10", [row()], 1, "within the target: not above it")

    def test_a_late_first_token(self):
        self.check("TTFT 101, TPOT 10", [row(ttft_ms=101)], 0, "the first token came too late")

    def test_slow_tokens(self):
        self.check(
            "TTFT 100, TPOT 11", [row(tpot_ms=11)], 0, "both targets: an answer that starts in time and drags is not good"
        )

    def test_tpot_is_the_mean_behind_the_first(self):
        cause = "11 tokens have 10 gaps: (finish - first token) / 10"
        self.check("TPOT 10.5 over 11 tokens", [row(tpot_ms=10.5)], 0, cause)

    def test_one_token_has_no_gaps(self):
        self.check(
            "one token at 50 ms", [row(ttft_ms=50, tokens=1)], 1, "no token behind the first: TPOT 0, and no division by 0"
        )

    def test_who_ended_badly_is_not_good(self):
        rows = [row(reason="abort"), row(reason="error"), row(reason="stop"), row()]
        self.check("abort, error, stop, length, all in time", rows, 2, 'only "stop" and "length" are well')

    def test_no_first_token(self):
        self.check(
            "an abort before the first token",
            [replace(row(), first_token_ns=None, finish_reason="abort")],
            0,
            "no TTFT, not good",
        )

    @pytest.mark.parametrize("targets", [(0, 10), (100, 0), (-1, 10), (100, -5)])
    def test_a_target_of_nothing_is_refused(self, targets):
        try:
            got = goodput([row()], *targets)
        except BadConfig as error:
            got = "above 0" in str(error)
        expect(f"targets {targets}", "a sentence", got, True, "above_zero(name, target) says it", TIME)


class TestAgingExtension:
    """Extension: AgingPriority.key, aging_bound."""

    def test_waiting_improves_a_priority(self):
        old, new = request("O", 2, 2, priority=10), request("N", 2, 2, priority=0, arrival=21)
        got = AgingPriority(0.5).key(old) < AgingPriority(0.5).key(new)
        cause = "after 21 steps at 0.5 it has gained 10.5. A later arrival has the larger key"
        expect("10 at 0, and 0 at 21; 0.5 a step", "the old one goes first", got, True, cause, AGING)

    def test_the_key_is_exact(self):
        key = AgingPriority(0.1).key(request("A", 2, 2, priority=3, arrival=7))
        cause = "rate 1/10: (3 * 10 + 1 * 7, 7), whole numbers; a key must not depend on the present time, nor on the queue"
        expect("priority 3 at 7, rate 0.1", "key()", tuple(key), (37, 7), cause, AGING)

    def test_ties_stay_ties(self):
        a, b = request("A", 2, 2, priority=3, arrival=0), request("B", 2, 2, priority=0, arrival=30)
        got = AgingPriority(0.1).key(a)[0] == AgingPriority(0.1).key(b)[0]
        expect(
            "3 at 0, and 0 at 30; 0.1 a step", "equal", got, True, "0.1 * 30 is exactly 3: count in whole numbers", AGING
        )

    def test_the_bound(self):
        got = [aging_bound(10, 0, 0.5), aging_bound(10, 4, 2), aging_bound(0, 0, 1)]
        expect("(10, 0, 0.5), (10, 4, 2), (0, 0, 1)", "aging_bound()", got, [20, 3, 0], "the gap over the rate", AGING)

    def test_without_aging_there_is_none(self):
        got = [aging_bound(10, 0, 0), aging_bound(3, 3, 0), aging_bound(2, 3, 0)]
        expect("rate 0", "aging_bound()", got, [float("inf"), 0.0, 0.0], "infinity, unless nobody is more urgent", AGING)

    @given(p=st.integers(0, 20), q=st.integers(0, 20), rate=st.sampled_from([0.1, 0.5, 1.0, 3.0]), late=st.integers(0, 300))
    def test_nobody_who_comes_after_the_bound_goes_first(self, p, q, rate, late):
        policy, bound = AgingPriority(rate), aging_bound(p, 0, rate)
        first, later = request("A", 2, 2, priority=p), request("B", 2, 2, priority=q, arrival=late)
        got = late <= bound or policy.key(first) < policy.key(later)
        expect(
            f"{p} at 0, {q} at {late}, rate {rate}, bound {bound}",
            "the first goes first",
            got,
            True,
            "see aging_bound",
            AGING,
        )

    def test_aging_does_not_protect_a_seat(self):
        scheduler = machine(seats=1, aging_per_step=5, **URGENT)
        old = request("A", 4, 9, priority=10)
        run = Run(scheduler, [old, request("N", 4, 2, priority=0, arrival=3)])
        rows = ["A4", "A1", "A1", "N4 | A evicted, A waits: eviction 1 > 0", "N1 | N done", "A7"]
        expect_steps("A (10) runs, N (0) comes; 5 points a step", run, rows, AGING)


class TestEstimateExtension:
    """Extension: TokenRatio.observe."""

    def test_it_decays(self):
        ratio = TokenRatio(start=0.5, least=0.25, decay=0.125)
        got = [ratio.observe([], False) for _ in range(4)]
        expect(
            "0.5, less 0.125 a step, least 0.25", "observe()", got, [0.375, 0.25, 0.25, 0.25], "down to `least`", PROMISE
        )

    def test_an_eviction_raises_it_to_what_answers_take(self):
        ratio = TokenRatio(start=0.25, ahead=2)
        running = [request("A", 4, 10, made=4), request("B", 4, 10, made=2)]
        cause = "(4 + 2 + 2 + 2) / (10 + 10): made, and 2 more each, of what they may make"
        expect("A 4 of 10, B 2 of 10 made, 2 ahead", "observe()", ratio.observe(running, True), 0.5, cause, PROMISE)

    def test_an_eviction_never_lowers_it(self):
        ratio = TokenRatio(start=0.75, ahead=0)
        got = ratio.observe([request("A", 4, 10, made=1)], True)
        expect(
            "0.75, and 1 of 10 made", "observe()", got, 0.75, "an eviction says: too low. It can't say: too high", PROMISE
        )

    def test_it_never_exceeds_one(self):
        got = TokenRatio(start=0.5).observe([request("A", 4, 10, made=9)], True)
        expect("9 of 10 made, 20 ahead", "observe()", got, 1.0, "1 is a reservation to completion", PROMISE)

    def test_nobody_runs(self):
        expect(
            "the only one was evicted",
            "observe()",
            TokenRatio(start=0.5).observe([], True),
            0.5,
            "no division by 0",
            PROMISE,
        )


class TestTokensBeforeExtension:
    """Extension: FairScheduler.tokens_before, and the door."""

    def test_in_a_queue_everybody_in_front_counts(self):
        scheduler = machine()
        queue(scheduler, request("A", 9, 3, made=2), request("B", 5, 3))
        one = request("N", 4, 3)
        one.order = 9
        expect("A11 and B5 wait", "tokens_before(N)", scheduler.tokens_before(one), 16, "what they know, outputs too", TIME)

    def test_asking_changes_nothing(self):
        scheduler = machine(seats=3, blocks=12)
        a, b = request("A", 9, 9, made=2), request("B", 5, 9, made=1)
        seat(scheduler, a, b)
        scheduler.preempt(b)
        one = request("N", 4, 3)
        one.order = 9
        got = [scheduler.tokens_before(one) for _ in range(2)]
        scheduler.preempt(a)
        cause = "a prediction looks at the queue, and leaves it as it is: A was evicted last, so it stands in front"
        expect("B waits, twice asked; then A is evicted", "tokens", got, [6, 6], "B's 6, both times", TIME)
        expect("B waits, twice asked; then A is evicted", "waiting", ids(scheduler.waiting), ["A", "B"], cause, TIME)

    def test_priority_decides_who_is_in_front(self):
        scheduler = machine(policy="priority")
        queue(scheduler, request("A", 9, 3, priority=2), request("B", 5, 3, priority=1))
        one = request("N", 4, 3, priority=1)
        one.order = 9
        expect(
            "A (2) and B (1) wait, N (1)",
            "tokens_before(N)",
            scheduler.tokens_before(one),
            5,
            "only B's place is not larger",
            TIME,
        )

    def test_a_flood_is_not_ahead(self):
        policy = FairShare()
        scheduler = machine(share=policy)
        queue(scheduler, *(of("flood", f"F{name}", 50, 3) for name in "abc"), of("me", "M", 7, 3))
        policy.served = {"flood": 100, "me": 95}
        one = of("me", "N", 8, 3)
        one.order = 9
        cause = "goal 95 + 7 + 8 = 110: of flood's 150 tokens 10 come before that, and M's 7"
        expect(
            "flood (100) has 150 waiting, me (95) 7, N8", "tokens_before(N)", scheduler.tokens_before(one), 17, cause, TIME
        )

    def test_a_tenant_far_ahead_is_not_ahead_of_anybody(self):
        policy = FairShare()
        scheduler = machine(share=policy)
        queue(scheduler, of("flood", "F", 50, 3))
        policy.served = {"flood": 1000}
        one = of("me", "N", 8, 3)
        expect(
            "flood (1,000) waits, me has had nothing",
            "tokens_before(N)",
            scheduler.tokens_before(one),
            0,
            "at least 0",
            TIME,
        )

    def test_seats_count_at_the_door(self):
        scheduler = machine(seats=2)
        scheduler.ttft_target_ms = 100.0
        seat(scheduler, request("A", 4, 90, made=1), request("B", 4, 90, made=1))
        with pytest.raises(RequestRefused) as error:
            scheduler.add(request("N", 4, 3))
        got = error.value.reason
        expect("both seats are taken for 90 tokens, target 100 ms", "add()", got, "rejected_slo", "no seat in time", TIME)


class TestTraces:
    """Whole machines, step by step."""

    def test_an_urgent_one_takes_a_seat_and_the_victim_returns(self):
        low = [request("A", 4, 8, priority=10), request("B", 4, 6, priority=10, arrival=1)]
        run = Run(machine(**URGENT), [*low, request("H", 4, 3, priority=0, arrival=3)])
        rows = [
            "A4",
            "A1 B4",
            "A1 B1",
            "A1 H4 | B evicted, B waits: eviction 1 > 0",
            "A1 H1 | B waits: seats 3 > 2",
            "A1 H1 | B waits: seats 3 > 2, H done",
            "A1 B6",
            "A1 B1 | A done",
            "B1",
            "B1 | B done",
        ]
        expect_steps("A and B (10), H (0)", run, rows, SEATS)

    def test_equals_never_play_ping_pong(self):
        run = Run(machine(seats=1, **URGENT), [request("A", 4, 3, priority=5), request("B", 4, 2, priority=5, arrival=1)])
        rows = ["A4", "A1 | B waits: seats 2 > 1", "A1 | B waits: seats 2 > 1, A done", "B4", "B1 | B done"]
        cause = "equals keep their seats: one is taken from a *strictly* less urgent request only"
        expect_steps("A and B, both 5", run, rows, SEATS, {"wrongly": cause})


@st.composite
def loads(draw):
    """Random requests, and a machine on which each can run, but not all together."""
    one = st.tuples(st.integers(1, 8), st.integers(1, 9), st.integers(0, 6), st.integers(0, 2), st.sampled_from("abc"))
    sizes = draw(st.lists(one, min_size=2, max_size=9))
    requests = [of(t, f"R{i}", p, m, arrival=a, priority=q) for i, (p, m, a, q, t) in enumerate(sizes)]
    slots = max(one.max_kv_slots for one in requests)
    seats = draw(st.integers(1, 4))
    return requests, dict(
        budget=max(seats, draw(st.integers(1, 9))), seats=seats, blocks=-(-slots // 4) + draw(st.integers(0, 3))
    )


ADMISSIONS = st.sampled_from(["chunk", "full_prompt", "to_completion"])
OFTEN = 40  # evictions of one request; in these loads 6 are many


def still_going(run: Run) -> bool:
    """Whether anybody is left. A request that is put out again and again fails at once: some loads would never end."""
    __tracebackhide__ = True
    for one in run.requests:
        if one.num_preemptions > OFTEN:
            cause = (
                "nothing makes room for long: who was let in is put out by who was put out for it, and so on without end"
            )
            if run.scheduler.config.preempt_for_priority:
                cause = "seats go back and forth without end: equals must not take each other's (strictly less urgent ones only)"
            text = f"{one.num_preemptions} times in {run.now} steps"
            mismatch(run.at(run.now), f"{one.id} was put out", text, "a few times at most", cause, SEATS)
    if run.now > 900:
        run.stuck(run.scheduler.batch, 0)
    return bool(run.arrivals or run.scheduler.waiting or run.scheduler.running)


class TestRandomTightLoads:
    """Properties that hold whatever comes: Run checks budget, seats, queues and memory after every step."""

    @given(
        load=loads(),
        admission=ADMISSIONS,
        skip=st.booleans(),
        kind=st.sampled_from(["fcfs", "shortest", "priority", "seats", "seats, shortest", "aging", "share", "estimate"]),
    )
    def test_everything_that_was_accepted_finishes(self, load, admission, skip, kind):
        requests, limits = load
        options = {"fcfs": {}, "share": {}, "estimate": {}, "shortest": {"policy": "shortest"}, "priority": {"policy": "priority"}, "seats": URGENT,
                   "aging": {**URGENT, "aging_per_step": 0.3},
            "seats, shortest": {**URGENT, "policy": "shortest"}}[kind]  # fmt: skip
        share = FairShare() if kind == "share" else None
        scheduler = machine(**limits, share=share, admission=admission, skip_blocked=skip, **options)
        if kind == "estimate":
            scheduler.estimate = TokenRatio(0.5, 0.0, 0.2, 1)
        run = Run(scheduler, requests)
        while still_going(run):
            run.step()
        where = f"{kind}, {admission}{', skip_blocked' if skip else ''}"
        expect(where, "finished", len(run.finished), len(requests), "everything that was accepted finishes", PROMISE)

    @given(load=loads(), policy=st.sampled_from(["fcfs", "shortest", "priority"]), skip=st.booleans())
    def test_to_completion_never_evicts(self, load, policy, skip):
        requests, limits = load
        scheduler = machine(**limits, admission="to_completion", skip_blocked=skip, policy=policy)
        run_to_end(scheduler, requests)
        cause = "who joins has its own blocks and those promised to the others: count `promised` for each who runs"
        expect(
            f"{policy}, reserved to completion",
            "preemptions",
            sum(one.num_preemptions for one in requests),
            0,
            cause,
            PROMISE,
        )

    @given(load=loads(), admission=ADMISSIONS)
    def test_a_seat_goes_from_a_less_urgent_to_a_more_urgent_one(self, load, admission):
        requests, limits = load
        scheduler = machine(**limits, admission=admission, **URGENT)
        run = Run(scheduler, requests)
        while still_going(run):
            batch = run.step()
            if batch.preempted and (batch.admitted or batch.resumed):
                joined = list(batch.tokens)[-1]
                got = [victim.priority > joined.priority for victim in batch.preempted]
                cause = "nobody is put out for an equal, and never for a less urgent one"
                expect(run.at(run.now), "the victim is less urgent", got, [True], cause, SEATS)

    @given(load=loads())
    def test_an_urgent_one_never_waits_behind_a_less_urgent_seat(self, load):
        requests, limits = load
        scheduler = machine(**{**limits, "blocks": 99, "budget": 99}, **URGENT)  # so that only a seat can be missing
        run = Run(scheduler, requests)
        while still_going(run):
            batch = run.schedule()
            if scheduler.waiting and not batch.preempted and batch.head.rule == "seats":
                first = min(one.priority for one in scheduler.waiting)
                last = max(one.priority for one in scheduler.running)
                text = f"{first} waits, {last} runs" if first < last else "in order"
                cause = "the head waits for a seat that a strictly less urgent one holds"
                expect(run.at(run.now + 1), "all seats taken", text, "in order", cause, SEATS)
            run.update(batch)

    @given(load=loads(), more=st.lists(st.sampled_from("ab"), min_size=6, max_size=14))
    def test_two_tenants_with_work_are_never_far_apart(self, load, more):
        requests, limits = load
        requests += [of(tenant, f"S{i}", 3, 4) for i, tenant in enumerate(more)]
        policy = FairShare()
        scheduler = machine(**limits, share=policy)
        bound = limits["seats"] * max(len(one.prompt) + 2 * one.max_tokens for one in requests)
        run = Run(scheduler, requests)
        while still_going(run):
            run.step()
            waits = [policy.served.get(tenant, 0) for tenant in {one.tenant for one in scheduler.waiting}]
            apart = max(waits, default=0) - min(waits, default=0)
            cause = "a tenant that is ahead gets no seat, and only what sits already runs on: is each token charged once?"
            expect(run.at(run.now), f"counters are {apart} apart, within {bound}", apart <= bound, True, cause, SHARES)


FIELD_CASES = [
    pytest.param(name, case, id=name)
    for name, case in read_workloads(Path(__file__).parent / "data" / "field_cases.json")
    if case.get("scheduler") == "s13"
]


class TestFieldCases:
    """Small inputs distilled from public bug reports against real engines: tests/data/field_cases.json."""

    @pytest.mark.parametrize("name, case", FIELD_CASES)
    def test_a_field_case_replays_with_the_right_numbers(self, name, case):
        got, want = replay(case, FairScheduler, "s13"), case["expect"]
        where, cause, see = (
            f"field case {name}: {case['title']}",
            case["right"],
            PROMISE if name[:3] in ("C04", "C30") else SEATS,
        )
        for key, value in want.items():
            if key != "requests":
                expect(where, key, got.totals[key], value, cause, see)
        for id, row in want["requests"].items():
            expect(f"{where}, request {id}", "its row", got.requests[id], row, cause, see)

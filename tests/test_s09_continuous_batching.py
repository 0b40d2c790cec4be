"""s09: who is in the batch is decided anew at every step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.errors import DuplicateRequest
from kit.runner import FakeRunner
from s08_static_batching import Batch, Engine, StaticBatcher
from s09_continuous_batching import ContinuousBatcher, speedup_bound
from support import Run, check_conservation, expect, expect_steps, queue, request, run_to_end, sampled, seat

STEP = "s09_continuous_batching/Decide every step"
MOVES = "s09_continuous_batching/Two small moves"
BOUND = "s09_continuous_batching/The bound"
DYNAMIC = "s09_continuous_batching/Continuous is not dynamic"


class TestRetire:
    """Exercise 1: ContinuousBatcher.retire."""

    def running(self, *ended: str):
        scheduler = ContinuousBatcher(4)
        seat(scheduler, *(request(name, 2, 3, made=1) for name in "ABCD"))
        finished = [one for one in scheduler.running if one.id in ended]
        for one in finished:
            one.finish_reason = "length"
        scheduler.retire(finished)
        return scheduler, [one.id for one in scheduler.running]

    def test_a_finished_request_leaves_its_slot(self):
        _, ids = self.running("A")
        expect("A, B, C and D run, A has finished", "running", ids, list("BCD"), "take it out of `running`", MOVES)

    def test_two_neighbours_that_finish_together_both_leave(self):
        _, ids = self.running("B", "C")
        cause = "a list that shrinks while you walk over it skips the neighbour: build a new one instead"
        expect("B and C have finished in one step", "running", ids, list("AD"), cause, MOVES)

    def test_the_others_keep_their_order(self):
        _, ids = self.running("B")
        cause = "moving the last one into the gap changes who is next: keep the order of admission"
        expect("A, B, C and D run, B has finished", "running", ids, list("ACD"), cause, MOVES)

    def test_its_id_may_be_used_again(self):
        scheduler, _ = self.running("A", "D")
        cause = "an id is live while `_live` has it: delete it there too, or it can never come back"
        expect("A and D have finished", "live ids", sorted(scheduler._live), ["B", "C"], cause, MOVES)


class TestRefill:
    """Exercise 2: ContinuousBatcher.refill."""

    def refilled(self, slots: int, running: str, waiting: str):
        scheduler, batch = ContinuousBatcher(slots), Batch()
        seat(scheduler, *(request(name, 2, 3, made=1) for name in running))
        queue(scheduler, *(request(name, 2, 3) for name in waiting))
        scheduler.refill(batch)
        return scheduler, batch

    def test_a_free_slot_goes_to_the_head_of_the_queue(self):
        scheduler, _ = self.refilled(2, "A", "BC")
        where = "A runs in one of two slots; B and C wait, B in front"
        ids = [one.id for one in scheduler.running]
        expect(where, "running", ids, ["A", "B"], "popleft() takes the front, append() puts it last", MOVES)
        expect(where, "waiting", [one.id for one in scheduler.waiting], ["C"], "who runs waits no longer", MOVES)

    def test_all_free_slots_are_filled_at_once(self):
        scheduler, _ = self.refilled(4, "A", "BCDE")
        cause = "refill *while* can_admit(): one a step leaves the other slots idle"
        expect("three free slots, four wait", "running", [one.id for one in scheduler.running], list("ABCD"), cause, MOVES)

    def test_whom_it_admits_is_listed_in_the_batch(self):
        _, batch = self.refilled(3, "A", "BC")
        cause = "list them in `batch.admitted`, in the order in which they came"
        expect("B and C join", "batch.admitted", [one.id for one in batch.admitted], ["B", "C"], cause, MOVES)

    def test_a_full_machine_admits_nobody(self):
        scheduler, batch = self.refilled(2, "AB", "C")
        cause = "can_admit() is asked before each move, not after it"
        expect("both slots are taken", "running", [one.id for one in scheduler.running], ["A", "B"], cause, MOVES)
        expect("both slots are taken", "batch.admitted", batch.admitted, [], cause, MOVES)

    def test_an_empty_queue_is_no_error(self):
        scheduler, _ = self.refilled(1000, "A", "")
        expect("nobody waits", "running", [one.id for one in scheduler.running], ["A"], "can_admit() asks for both", MOVES)

    def test_it_asks_can_admit_and_nothing_else(self):
        class Picky(ContinuousBatcher):
            def can_admit(self):
                return len(self.running) < 1 and super().can_admit()

        scheduler, batch = Picky(4), Batch()
        queue(scheduler, request("A", 2, 3), request("B", 2, 3))
        scheduler.refill(batch)
        cause = "the rule lives in can_admit(), which the next lesson replaces: don't count slots here again"
        expect("can_admit() allows one", "running", [one.id for one in scheduler.running], ["A"], cause, MOVES)


class TestSchedule:
    """Exercise 3: ContinuousBatcher.schedule."""

    def test_a_newcomer_joins_who_runs(self):
        scheduler, a, b = ContinuousBatcher(2), request("A", 2, 3, made=1), request("B", 4, 3)
        seat(scheduler, a)
        queue(scheduler, b)
        batch = scheduler.schedule()
        where = "A runs in one of two slots, B waits with a prompt of 4"
        expect(where, "schedule() returned", type(batch).__name__, "Batch", "the last line returns the batch", STEP)
        cause = "refill first, then every running request computes: B's prompt and A's token share the step"
        expect(where, "batch.tokens", batch.tokens, {a: 1, b: 4}, cause, STEP)

    def test_what_is_scheduled_counts_as_computed(self):
        scheduler, a = ContinuousBatcher(2), request("A", 5, 3)
        queue(scheduler, a)
        scheduler.schedule()
        cause = "schedule() advances num_computed_tokens by what it puts into the batch"
        expect("A's 5 prompt tokens are in the batch", "num_computed_tokens", a.num_computed_tokens, 5, cause, STEP)

    def test_the_head_of_the_queue_learns_why_it_waits(self):
        scheduler = ContinuousBatcher(1)
        queue(scheduler, request("A", 2, 3), request("B", 2, 3))
        head = scheduler.schedule().head
        cause = "B still waits: batch.head = self.why_wait()"
        expect("one slot, A has taken it", "batch.head.rule", getattr(head, "rule", None), "slots", cause, STEP)

    def test_nobody_waits_so_no_reason_is_given(self):
        scheduler = ContinuousBatcher(1)
        queue(scheduler, request("A", 2, 3))
        cause = "give a reason only if somebody still waits"
        expect("A has joined, the queue is empty", "batch.head", scheduler.schedule().head, None, cause, STEP)

    def test_with_nothing_to_do_the_batch_is_empty(self):
        batch = ContinuousBatcher(2).schedule()
        cause = "an empty queue is not an error: return a Batch without tokens"
        expect("nobody waits, nobody runs", "batch.tokens", batch.tokens, {}, cause, STEP)

    def test_an_exact_trace(self):
        run = Run(ContinuousBatcher(2), [request("A", 3, 1), request("B", 2, 3), request("C", 4, 2), request("D", 1, 1)])
        table = [
            "A3 B2 | A done, C waits: slots 1 > 0",
            "B1 C4 | D waits: slots 1 > 0",
            "B1 C1 | B done, C done, D waits: slots 1 > 0",
            "D1    | D done",
            "",
        ]
        causes = {
            "joined": "it finds no free slot: a slot is free after `retire`, not before",
            "absent": "a slot that came free is taken at the very next step: retire, then refill",
        }
        expect_steps("two slots, four requests", run, table, STEP, causes)


class TestSpeedupBound:
    """Exercise 4: speedup_bound(lengths, slots)."""

    def check(self, lengths, slots, want, cause):
        where = f"{slots} slots, lengths {lengths}"
        expect(where, "speedup_bound()", round(speedup_bound(lengths, slots), 6), round(want, 6), cause, BOUND)

    def test_equal_lengths_leave_nothing_to_win(self):
        self.check([5, 5, 5, 5], 2, 1.0, "static: 5 + 5 steps; 20 tokens over 2 slots: 10 steps")

    def test_short_ones_behind_a_long_one_are_what_is_won(self):
        cause = "static: 9 + 9 steps; all 20 tokens over 2 slots: 10 steps"
        self.check([9, 1, 1, 9], 2, 1.8, cause)

    def test_groups_are_taken_in_the_order_of_the_queue(self):
        cause = "static batching takes consecutive groups, in the order given: sorting them first is another scheduler"
        self.check([1, 8, 1, 8], 2, 16 / 9, cause)

    def test_no_scheduler_beats_the_longest_request(self):
        cause = "a request makes one token a step: 10 steps at least, though 14 tokens over 4 slots are 4"
        self.check([10, 1, 1, 1, 1], 4, 11 / 10, cause)

    def test_the_tokens_over_the_slots_are_rounded_up(self):
        self.check([2, 2, 2, 1], 2, 4 / 4, "7 tokens over 2 slots take 4 steps, not 3.5: -(-sum // slots)")

    def test_a_last_group_may_be_part_filled(self):
        self.check([3, 3, 3], 2, 6 / 5, "groups [3, 3] and [3]: 6 static steps; 9 tokens over 2 slots: 5")

    def test_no_requests_win_nothing(self):
        self.check([], 4, 1.0, "no requests: 1.0, not max() of an empty list or a division by zero")

    @given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=10))
    def test_no_run_wins_more_than_the_bound(self, slots, lengths):
        def steps(scheduler):
            requests = [request(f"R{i}", 1, n) for i, n in enumerate(lengths)]
            return Engine(scheduler, FakeRunner(), requests).run(1000).num_steps

        static, continuous = steps(StaticBatcher(slots)), steps(ContinuousBatcher(slots))
        bound = speedup_bound(lengths, slots)
        where = f"{slots} slots, lengths {lengths}: static {static} steps, continuous {continuous}"
        cause = "a bound is never below what a run wins, and static / longest is never below it"
        ok = static / continuous <= bound + 1e-9 <= static / max(lengths) + 2e-9
        got = f"{bound:.3f}"
        expect(where, "speedup_bound()", got, got if ok else "a bound on the ratio of the two runs", cause, BOUND)


class TestTheWholeScheduler:
    """Everything together."""

    def test_it_takes_fewer_steps_than_the_static_batcher(self):
        def steps(scheduler):
            requests = [request(f"R{i}", 4, n) for i, n in enumerate([9, 1, 1, 9, 1, 1, 9, 1])]
            return Engine(scheduler, FakeRunner(), requests).run(1000).num_steps

        got = steps(StaticBatcher(2)), steps(ContinuousBatcher(2))
        cause = "a slot that came free is taken at the next step: 32 tokens in 2 slots need 16 steps at least"
        expect("lengths 9 1 1 9 1 1 9 1 in two slots", "steps (static, continuous)", got, (28, 20), cause, STEP)

    def test_it_does_not_wait_for_a_batch_to_fill(self):
        report = Engine(
            ContinuousBatcher(4),
            FakeRunner(step_ns=10),
            [request("A", 2, 9), request("B", 2, 2, arrival=35)],
        ).run(1000)
        got = {row.id: row.first_token_ns for row in report.rows}
        cause = "dynamic batching waits for a full batch or a time-out; here B joins the step after it arrives"
        expect("A runs alone, B arrives at 35 ns", "first tokens", got, {"B": 50, "A": 10}, cause, DYNAMIC)

    def test_a_live_id_is_refused_and_may_come_back_when_it_is_free(self):
        scheduler = ContinuousBatcher(1)
        scheduler.add(request("A", 2, 1))
        with pytest.raises(DuplicateRequest):
            scheduler.add(request("A", 2, 1))
        batch = scheduler.schedule()
        scheduler.update(batch, sampled(batch))
        scheduler.add(request("A", 2, 1))

    def test_an_aborted_request_frees_its_slot_for_the_next_step(self):
        requests = [request(name, 3, 5) for name in "ABC"]
        run = Run(ContinuousBatcher(2), requests)
        batch = run.schedule()
        run.scheduler.abort("A")
        run.update(batch)
        check_conservation(run.scheduler, requests, "A was aborted while its step ran")
        cause = "refill looks at `running` as it is at this step"
        expect("A is gone, C waits", "batch.tokens", run.step().tokens, {requests[1]: 1, requests[2]: 3}, cause, STEP)

    @given(st.integers(1, 5), st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 8)), max_size=9))
    def test_every_request_gets_the_tokens_that_it_gets_alone(self, slots, sizes):
        requests = [request(f"R{i}", *size[:2], arrival=size[2]) for i, size in enumerate(sizes)]
        run = run_to_end(ContinuousBatcher(slots), requests)
        cause = "everything that was added finishes, once"
        expect(f"{slots} slots", "finished", len(run.finished), len(requests), cause, STEP)

    @given(st.integers(1, 4), st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=9))
    def test_no_slot_is_idle_while_somebody_waits(self, slots, sizes):
        run = Run(ContinuousBatcher(slots), [request(f"R{i}", *size) for i, size in enumerate(sizes)])
        run.arrive()
        while run.scheduler.running or run.scheduler.waiting:
            alive = len(run.scheduler.running) + len(run.scheduler.waiting)
            batch = run.step()
            cause = "who finished leaves at once, and every free slot is filled"
            expect(f"{alive} alive, {slots} slots", "batch size", len(batch.tokens), min(slots, alive), cause, STEP)

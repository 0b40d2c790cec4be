"""s08: the loop, and a batch that is closed until its last member is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.errors import CourseError, DuplicateRequest
from kit.runner import FakeRunner
from s08_static_batching import Batch, Engine, Latency, StaticBatcher, latency, slot_utilisation
from support import (
    Run,
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

CLOSED = "s08_static_batching/A closed batch"
LOOP = "s08_static_batching/The loop"
USER = "s08_static_batching/What a user feels"
SLOTS = "s08_static_batching/A closed batch"


def batcher(slots: int, *waiting) -> StaticBatcher:
    scheduler = StaticBatcher(slots)
    queue(scheduler, *waiting)
    return scheduler


class TestSchedule:
    """Exercise 1: StaticBatcher.schedule."""

    def test_a_lone_request_computes_its_whole_prompt(self):
        a = request("A", 5, 3)
        batch = batcher(2, a).schedule()
        where = "A waits with a prompt of 5 tokens, nobody runs"
        expect(where, "schedule() returned", type(batch).__name__, "Batch", "the last line returns the batch", CLOSED)
        cause = "its first step computes all that it is behind by: num_tokens - num_computed_tokens = 5 - 0"
        expect(where, "batch.tokens", batch.tokens, {a: 5}, cause, CLOSED)

    def test_what_is_scheduled_counts_as_computed(self):
        a = request("A", 5, 3)
        batcher(2, a).schedule()
        where = "A's 5 prompt tokens are in the batch"
        cause = "schedule() advances num_computed_tokens by what it puts into the batch"
        expect(where, "num_computed_tokens", a.num_computed_tokens, 5, cause, CLOSED)

    def test_a_running_request_computes_the_one_token_it_has_just_sampled(self):
        scheduler, a = StaticBatcher(2), request("A", 5, 3, made=1)
        seat(scheduler, a)
        where = "A runs; 5 of its 6 tokens are computed"
        cause = "a later step computes what is new: num_tokens - num_computed_tokens = 6 - 5"
        expect(where, "batch.tokens", scheduler.schedule().tokens, {a: 1}, cause, CLOSED)

    def test_a_batch_is_filled_from_the_front_of_the_queue(self):
        a, b, c = request("A", 2, 3), request("B", 2, 3), request("C", 2, 3)
        scheduler = batcher(2, a, b, c)
        batch = scheduler.schedule()
        where = "two slots; A, B and C wait, A in front"
        cause = "popleft() takes the front, append() keeps the order"
        if len(scheduler.running) < 2:
            cause = "ask whether anything runs once, before you fill: the first one admitted must not close the door"
        expect(where, "running", scheduler.running, [a, b], cause, CLOSED)
        expect(where, "batch.admitted", batch.admitted, [a, b], "list whom this step admits, in that order", CLOSED)
        expect(where, "waiting", list(scheduler.waiting), [c], "who is admitted leaves `waiting`; C finds no slot", CLOSED)

    def test_a_part_filled_batch_runs_when_nobody_else_waits(self):
        a = request("A", 2, 3)
        scheduler = batcher(1000, a)
        batch = scheduler.schedule()
        where = "1000 slots, A alone waits"
        expect(where, "running", scheduler.running, [a], "fill until the slots are taken *or* nobody waits", CLOSED)
        expect(where, "batch.head", batch.head, None, "nobody waits, so there is no reason to give", CLOSED)

    def test_a_running_batch_admits_nobody(self):
        scheduler, a, b = batcher(2), request("A", 2, 3, made=1), request("B", 2, 3)
        seat(scheduler, a)
        queue(scheduler, b)
        batch = scheduler.schedule()
        where = "A runs in one of two slots, B waits"
        cause = "the batch is closed: admit only when nothing is running, a free slot stays empty until then"
        expect(where, "running", scheduler.running, [a], cause, CLOSED)
        expect(where, "batch.tokens", batch.tokens, {a: 1}, cause, CLOSED)
        expect(where, "batch.admitted", batch.admitted, [], cause, CLOSED)

    def test_the_head_of_the_queue_learns_why_it_waits(self):
        scheduler = batcher(1, request("A", 2, 3), request("B", 2, 3))
        batch = scheduler.schedule()
        cause = "B still waits: batch.head = self.why_wait()"
        expect("one slot, A has taken it", "batch.head.rule", getattr(batch.head, "rule", None), "batch", cause, CLOSED)
        expect("one slot, A has taken it", "explain()", list(scheduler.explain(batch)), ["B"], cause, CLOSED)

    def test_with_nothing_to_do_the_batch_is_empty(self):
        batch = StaticBatcher(2).schedule()
        where, cause = "nobody waits, nobody runs", "an empty queue is not an error: return a Batch without tokens"
        expect(where, "schedule() returned", type(batch).__name__, "Batch", cause, CLOSED)
        expect(where, "batch.tokens", batch.tokens, {}, cause, CLOSED)

    def test_an_exact_trace(self):
        run = Run(StaticBatcher(2), [request("A", 3, 1), request("B", 2, 3), request("C", 4, 2), request("D", 1, 1)])
        table = [
            "A3 B2 | A done, C waits: batch 2 > 0",
            "B1    | C waits: batch 1 > 0",
            "B1    | B done, C waits: batch 1 > 0",
            "C4 D1 | D done",
            "C1    | C done",
            "",
        ]
        causes = {
            "joined": "the batch is closed: nobody joins until its last member is done",
            "absent": "nothing runs, so the next batch takes all slots that it can fill",
        }
        expect_steps("two slots, four requests", run, table, CLOSED, causes)


class TestStep:
    """Exercise 2: Engine.step, with a scheduler that only takes notes."""

    class Notes:
        """A scheduler that hands out one prepared batch and writes down what the engine does to it."""

        def __init__(self, *running):
            self.running, self.waiting = list(running), []
            self.calls: list[str] = []
            self.batch = Batch({one: 1 for one in running})
            self.engine = None
            self.clock_at_update = self.updated = None

        def add(self, request):
            self.calls.append(f"add {request.id}")

        def schedule(self):
            self.calls.append("schedule")
            return self.batch

        def execute(self, batch):
            self.calls.append("execute")
            return {request.id: [7] for request in batch.tokens}, 500

        def update(self, batch, tokens):
            self.calls.append("update")
            self.clock_at_update, self.updated = self.engine.clock_ns, (batch, tokens)
            return []

        def abort(self, request_id, reason="abort"):
            self.calls.append(f"abort {request_id} as {reason}")
            return next((request for request in self.running if request.id == request_id), None)

    def engine(self, *running, arrivals=()):
        notes = self.Notes(*running)
        notes.engine = Engine(notes, notes, arrivals)
        return notes.engine, notes

    def test_a_turn_is_arrive_schedule_execute_update(self):
        engine, notes = self.engine(request("A", 2, 3), arrivals=[request("B", 2, 3)])
        engine.step()
        cause = "the order is arrive, schedule, execute, update: who has arrived may join this very step"
        want = ["add B", "schedule", "execute", "update"]
        expect("A runs, B has just arrived", "step() called", notes.calls, want, cause, LOOP)

    def test_step_returns_the_batch(self):
        engine, notes = self.engine(request("A", 2, 3))
        expect("A runs", "step() returned", engine.step(), notes.batch, "return the batch at every exit", LOOP)

    def test_the_scheduler_gets_the_tokens_of_the_runner(self):
        engine, notes = self.engine(request("A", 2, 3))
        engine.step()
        cause = "`runner.execute(batch)` returns a pair (tokens, nanoseconds); update takes the batch and the tokens"
        expect("the runner made token 7 for A", "update() got", notes.updated, (notes.batch, {"A": [7]}), cause, LOOP)

    def test_the_clock_moves_by_the_time_of_the_step(self):
        engine, _ = self.engine(request("A", 2, 3))
        engine.step()
        engine.step()
        cause = "add the nanoseconds of each step to `clock_ns`"
        expect("two steps of 500 ns", "clock_ns", engine.clock_ns, 1000, cause, LOOP)

    def test_the_clock_moves_before_the_token_appears(self):
        engine, notes = self.engine(request("A", 2, 3))
        engine.step()
        cause = "move the clock first, then update: a token exists when its step has ended, and whoever looks must see that time"
        expect("a step of 500 ns", "clock during update()", notes.clock_at_update, 500, cause, LOOP)

    def test_the_step_is_recorded_after_the_update(self):
        engine, _ = self.engine(request("A", 2, 3))
        engine.step()
        report = engine.report
        cause = "self.report.record(self.clock_ns, batch, tokens, finished, scheduler), once a step, at its end"
        expect("one step of 500 ns", "recorded steps end at", list(report.end_ns), [500], cause, LOOP)

    def test_a_finished_request_reaches_the_report(self):
        engine = Engine(StaticBatcher(1), FakeRunner(step_ns=500), [request("A", 2, 1)])
        seat(engine.scheduler, request("B", 1, 2, made=1))
        engine.step()
        cause = "give `record` what `update` returned"
        rows = [(row.id, row.finish_ns) for row in engine.report.rows]
        expect("B's last token comes at 500 ns", "rows", rows, [("B", 500)], cause, LOOP)

    def test_an_empty_batch_jumps_to_the_next_arrival(self):
        engine, notes = self.engine(arrivals=[request("A", 2, 3, arrival=9000)])
        batch = engine.step()
        where = "nobody runs, A arrives at 9000 ns"
        cause = "a batch without tokens is not executed: self.idle(batch), and return it"
        expect(where, "step() called", notes.calls, ["schedule"], cause, LOOP)
        expect(where, "clock_ns", engine.clock_ns, 9000, cause, LOOP)
        recorded = (len(engine.report.end_ns), engine.report.idle_steps)
        expect(where, "recorded steps, idle steps", recorded, (0, 1), cause, LOOP)
        expect(where, "step() returned", batch, notes.batch, "return the batch at every exit", LOOP)

    def test_a_runner_that_raises_ends_the_requests_of_its_batch_and_no_others(self):
        engine, notes = self.engine(request("A", 2, 3))
        notes.execute = lambda batch: 1 / 0
        notes.waiting.append(request("B", 2, 3))
        where = "the runner raises while it computes A; B waits"
        cause = "catch Exception around `execute` alone, call self.fail(batch, error), return the batch"
        try:
            batch = engine.step()
        except ZeroDivisionError:
            mismatch(where, "step() raised", "the runner's ZeroDivisionError", "no error", cause, LOOP)
        expect(where, "step() called", notes.calls, ["schedule", "abort A as error"], cause, LOOP)
        expect(where, "step() returned", batch, notes.batch, "return the batch at every exit", LOOP)
        expect(where, "clock_ns", engine.clock_ns, 0, "no time is known for a step that broke", LOOP)

    def test_an_interrupt_is_not_an_error_of_the_runner(self):
        def interrupted(batch):
            raise KeyboardInterrupt

        engine, notes = self.engine(request("A", 2, 3))
        notes.execute = interrupted
        try:
            engine.step()
            got = "nothing raised"
        except KeyboardInterrupt:
            got = "KeyboardInterrupt"
        cause = "catch Exception, not everything: Ctrl-C must reach the user"
        expect("Ctrl-C during execute()", "step()", got, "KeyboardInterrupt", cause, LOOP)

    def test_a_bug_of_the_scheduler_is_not_an_error_of_the_runner(self):
        engine, notes = self.engine(request("A", 2, 3))
        notes.update = lambda batch, tokens: [][0]
        try:
            engine.step()
            got = "nothing raised"
        except IndexError:
            got = "IndexError"
        cause = "the `try` holds `execute` alone; swallowing more hides the scheduler's bugs"
        expect("update() has a bug", "step()", got, "IndexError", cause, LOOP)


class TestLatency:
    """Exercise 3: latency(stamps)."""

    CASES = {
        "a single token": ([100, 350], Latency(250, 0, 0.0, 250)),
        "two tokens": ([0, 50, 60], Latency(50, 10, 10.0, 60)),
        "a pause in the middle": ([100, 200, 210, 250, 260], Latency(100, 40, 20.0, 160)),
        "tokens at the same moment": ([0, 5, 5, 5], Latency(5, 0, 0.0, 5)),
    }

    def check(self, name, field, cause):
        stamps, want = self.CASES[name]
        try:
            got = latency(list(stamps))
        except (ValueError, ZeroDivisionError) as error:
            why = "a single token has no gap: the longest is 0, the mean 0.0"
            mismatch(f"{name}: stamps {stamps}", "latency() raised", repr(error), want, why, USER)
        expect(f"{name}: stamps {stamps}", f"latency().{field}", getattr(got, field), getattr(want, field), cause, USER)

    @pytest.mark.parametrize("name", CASES)
    def test_ttft_is_the_wait_for_the_first_token(self, name):
        self.check(name, "ttft_ns", "the first stamp is the arrival, the second the first token")

    @pytest.mark.parametrize("name", CASES)
    def test_a_gap_lies_between_two_tokens(self, name):
        cause = "the wait for the first token is TTFT, not a gap: leave the arrival out"
        self.check(name, "longest_gap_ns", cause)

    @pytest.mark.parametrize("name", CASES)
    def test_tpot_is_the_mean_gap(self, name):
        cause = "divide by the number of gaps, one less than the tokens; the first token's wait is not among them"
        self.check(name, "tpot_ns", cause)

    def test_tpot_is_not_rounded(self):
        got = latency([0, 10, 11, 13]).tpot_ns
        expect(
            "gaps 1 and 2", "latency().tpot_ns", got, 1.5, "`/`, not `//`: a mean of whole numbers need not be one", USER
        )

    @pytest.mark.parametrize("name", CASES)
    def test_total_runs_from_arrival_to_the_last_token(self, name):
        self.check(name, "total_ns", "last stamp minus first stamp")

    @given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 100))
    def test_ttft_and_gaps_add_up_to_the_total(self, waits, arrival):
        stamps = [arrival]
        for wait in waits:
            stamps.append(stamps[-1] + wait)
        got = latency(stamps)
        where = f"stamps {stamps}"
        want = waits[0] + sum(waits[1:])
        total = round(got.ttft_ns + got.tpot_ns * len(waits[1:]))
        expect(where, "ttft + all gaps", total, want, "TPOT is the mean gap", USER)
        longest = max(waits[1:], default=0)
        expect(where, "longest_gap_ns", got.longest_gap_ns, longest, "the largest gap between two tokens", USER)


class TestSlotUtilisation:
    """Exercise 4: slot_utilisation(batches)."""

    def check(self, batches, want, cause):
        got = slot_utilisation(batches)
        expect(f"batches {batches}", "slot_utilisation()", round(got, 6), round(want, 6), cause, SLOTS)

    def test_equal_lengths_waste_nothing(self):
        self.check([[4, 4]], 1.0, "two slots for four steps are 8 slot-steps, and 8 tokens were made")

    def test_the_longest_member_holds_all_slots(self):
        self.check([[1, 2, 5]], 8 / 15, "3 slots are held for 5 steps: 15 slot-steps for 8 tokens")

    def test_an_empty_slot_is_held_too(self):
        self.check([[4, 0]], 0.5, "a slot left empty is still a slot of this server: 0 counts in len(batch)")

    def test_a_long_batch_weighs_more_than_a_short_one(self):
        cause = "over all batches together: sum both, then divide; a mean of ratios forgets the weights"
        self.check([[1, 1], [9, 1]], 12 / 20, cause)

    def test_nothing_held_is_nothing_used(self):
        self.check([], 0.0, "no batch: 0.0, not a division by zero")
        try:
            self.check([[]], 0.0, "a batch without slots holds nothing")
        except ValueError as error:
            cause = "a batch without slots holds nothing: max() of an empty list needs a default"
            mismatch("batches [[]]", "slot_utilisation() raised", repr(error), 0.0, cause, SLOTS)
        self.check([[0, 0]], 0.0, "slots that nobody took hold no steps: 0.0, not a division by zero")

    @given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4))
    def test_it_is_what_a_run_of_the_batcher_shows(self, batches):
        """Every slot-step of a batch with its longest member's length, counted one by one."""
        held = made = 0
        for batch in batches:
            for step in range(max(batch)):
                held += len(batch)
                made += sum(step < tokens for tokens in batch)
        self.check(batches, made / held, "count slot-steps until the longest member is done")


class TestTheWholeEngine:
    """Everything together, and the given parts that a scheduler's life depends on."""

    def test_the_engine_runs_the_batcher_to_the_end(self):
        requests = [request(name, 3, n) for name, n in zip("ABCDE", (1, 4, 2, 3, 1))]
        report = Engine(StaticBatcher(2), FakeRunner(), requests).run(1000)
        cause = "batches A B, C D and E last 4, 3 and 1 steps"
        expect("five requests, two slots", "end, steps", (report.end, report.num_steps), ("done", 8), cause, CLOSED)

    def test_a_late_arrival_waits_for_its_time(self):
        requests = [request("A", 3, 2), request("B", 3, 1, arrival=10**9)]
        report = Engine(StaticBatcher(2), FakeRunner(step_ns=10), requests).run(1000)
        got = {row.id: row.first_token_ns for row in report.rows}
        cause = "the clock jumps over an idle stretch and B's first token takes one step from there"
        expect("B arrives after A is done", "first tokens", got, {"A": 10, "B": 10**9 + 10}, cause, LOOP)

    def test_an_engine_that_lost_a_step_goes_on(self):
        class Breaks(FakeRunner):
            def execute(self, batch):
                if any(request.id == "A" for request in batch.tokens):
                    raise RuntimeError("out of memory")
                return super().execute(batch)

        requests = [request("A", 3, 4), request("B", 3, 4), request("C", 3, 4)]
        engine = Engine(StaticBatcher(2), Breaks(), requests)
        engine.run(1000)
        got = {row.id: row.finish_reason for row in engine.report.rows}
        cause = "the broken step ends its own requests as `error`; the loop goes on with the others"
        want = {"A": "error", "B": "error", "C": "length"}
        expect("A and B are in a step that breaks", "reasons", got, want, cause, LOOP)
        check_conservation(engine.scheduler, requests)

    def test_a_live_id_is_refused_and_may_come_back_when_it_is_free(self):
        """Field case C15: the second request must not touch the first."""
        scheduler, first = StaticBatcher(1), request("A", 4, 4)
        scheduler.add(first)
        scheduler.update(*self.turn(scheduler))
        with pytest.raises(DuplicateRequest, match="A") as error:
            scheduler.add(request("A", 9, 9))
        expect("A is live", "a ValueError", isinstance(error.value, (ValueError, CourseError)), True, "typed errors", LOOP)
        while scheduler.running:
            scheduler.update(*self.turn(scheduler))
        expect("A has finished", "its output", first.output, lone_output(first), "the refused one left no trace", LOOP)
        scheduler.add(request("A", 4, 4))
        scheduler.abort("A")
        scheduler.add(request("A", 4, 4))

    @staticmethod
    def turn(scheduler):
        batch = scheduler.schedule()
        return batch, sampled(batch)

    def test_an_abort_ends_a_waiting_a_running_and_a_computing_request(self):
        requests = [request(name, 3, 5) for name in "ABC"]
        run = Run(StaticBatcher(2), requests)
        batch = run.schedule()
        for name, state in zip("CBA", ("waiting", "computing", "computing")):
            run.scheduler.abort(name)
            check_conservation(run.scheduler, requests, f"{name} was aborted while {state}")
        run.update(batch)
        outputs = [request.output for request in requests]
        expect("all three were aborted", "outputs", outputs, [[], [], []], "no token comes after an abort", LOOP)
        expect("nobody is live", "abort('A')", run.scheduler.abort("A"), None, "an unknown id is not an error", LOOP)

    @given(st.integers(1, 5), st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 8)), max_size=9))
    def test_every_request_gets_the_tokens_that_it_gets_alone(self, slots, sizes):
        requests = [request(f"R{i}", *size[:2], arrival=size[2]) for i, size in enumerate(sizes)]
        run = run_to_end(StaticBatcher(slots), requests)
        cause = "everything that was added finishes, once"
        expect(f"{slots} slots", "finished", len(run.finished), len(requests), cause, CLOSED)

    @given(st.integers(1, 4), st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=9))
    def test_a_batch_is_closed_until_its_last_member_is_done(self, slots, sizes):
        run = Run(StaticBatcher(slots), [request(f"R{i}", *size) for i, size in enumerate(sizes)])
        run.arrive()
        while run.scheduler.running or run.scheduler.waiting:
            before, waiting = list(run.scheduler.running), len(run.scheduler.waiting)
            batch = run.step()
            want = 0 if before else min(slots, waiting)
            cause = "admit only when nothing is running, and then as many as there are slots"
            expect(f"{len(before)} of {slots} slots run", "admitted", len(batch.admitted), want, cause, CLOSED)

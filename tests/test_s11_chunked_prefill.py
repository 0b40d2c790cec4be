"""s11: chunks. Exercise by exercise, then exact traces in small numbers, then random loads in tight memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.config import Config
from kit.replay import replay
from kit.runner import FakeRunner, fake_token
from kit.workloads import read_workloads
from s08_static_batching import Batch, Engine
from s11_chunked_prefill import ChunkedScheduler, longest_gap
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

EXAMPLE = "s11_chunked_prefill/The running example"
MUCH = "s11_chunked_prefill/How much"
STEP = "s11_chunked_prefill/A step"
TOKEN = "s11_chunked_prefill/Who makes a token"
JOIN = "s11_chunked_prefill/Who may join"
GAP = "s11_chunked_prefill/The longest gap"

POLICIES = ("fcfs", "shortest", "priority")


def machine(budget: int = 8, seats: int = 4, blocks: int = 12, block_size: int = 4, **options) -> ChunkedScheduler:
    """s10's machine with an ample pool, unless told otherwise; no watermark."""
    limits = dict(max_num_batched_tokens=budget, max_num_seqs=seats, num_blocks=blocks, block_size=block_size)
    scheduler = ChunkedScheduler(Config(**limits, **{"watermark": 0.0, **options}))
    scheduler.batch = Batch()
    return scheduler


def midway(scheduler: ChunkedScheduler, one, computed: int):
    """Put a request in `running` with so many of its tokens computed."""
    queue(scheduler, one)
    scheduler.waiting.remove(one)
    scheduler.running.append(one)
    scheduler.pool.grow(one, computed)
    one.num_computed_tokens = computed
    return one


def ids(requests) -> list[str]:
    return [one.id for one in requests]


class TestChunkSize:
    """Exercise 1: ChunkedScheduler.chunk_size."""

    def check(self, where, scheduler, one, budget, want, cause):
        expect(where, f"chunk_size({one.id}, {budget})", scheduler.chunk_size(one, budget), want, cause, MUCH)

    def queued(self, prompt: int, others: int = 0, **options):
        scheduler, one = machine(**options), request("L", prompt, 3)
        queue(scheduler, one, *(request(f"R{i}", 2, 2) for i in range(others)))
        return scheduler, one

    def test_a_prompt_that_fits_is_computed_whole(self):
        self.check("prompt 5, 8 tokens left", *self.queued(5), 8, 5, "the gap, num_tokens - num_computed_tokens, fits")

    def test_a_prompt_that_does_not_fit_is_cut(self):
        cause = "it need not wait until it fits: it takes what is left, the smaller of gap and budget"
        self.check("prompt 13, 8 tokens left", *self.queued(13), 8, 8, cause)

    def test_the_next_chunk_takes_up_where_the_last_ended(self):
        scheduler = machine()
        one = midway(scheduler, request("L", 13, 3), 8)
        cause = "the gap is what is known less what is computed: 13 - 8. The whole prompt is not due again"
        self.check("8 of a prompt of 13 are computed", scheduler, one, 8, 5, cause)

    def test_a_decode_is_a_chunk_of_one(self):
        scheduler, one = machine(), request("A", 3, 6, made=2)
        seat(scheduler, one)
        self.check("A has sampled its second token", scheduler, one, 8, 1, "no case of its own: its gap is 1")

    def test_a_returning_request_is_behind_by_its_outputs_too(self):
        scheduler, one = machine(), request("A", 3, 6, made=2)
        queue(scheduler, one)
        cause = "num_tokens, not len(prompt): the KV of its 2 outputs is gone as well"
        self.check("A comes back with 3 + 2 tokens", scheduler, one, 8, 5, cause)

    @pytest.mark.parametrize("budget", [0, -2])
    def test_a_spent_budget_gives_nothing(self, budget):
        cause = "never below 0: our decode pass stops first, but who charges 6 decodes to a step of 4 asks with 4 - 6 = -2"
        self.check(f"{budget} tokens left", *self.queued(13), budget, 0, cause)
        cause = "never below 0, with chunks or without"
        self.check(f"{budget} tokens left, not chunked", *self.queued(13, chunked_prefill=False), budget, 0, cause)

    def test_without_chunking_it_is_all_or_nothing(self):
        cause = "`config.chunked_prefill` is off: the whole gap, or 0 if the budget is smaller"
        scheduler, one = self.queued(7, chunked_prefill=False)
        self.check("not chunked, prompt 7, 8 left", scheduler, one, 8, 7, cause)
        self.check("not chunked, prompt 7, 7 left", scheduler, one, 7, 7, cause + "; an exact fit is enough")
        self.check("not chunked, prompt 7, 6 left", scheduler, one, 6, 0, cause)

    def test_without_chunking_the_threshold_is_ignored(self):
        cause = "`config.chunked_prefill` is off: the threshold is ignored, it keeps no whole prompt out"
        options = {"chunked_prefill": False, "long_prefill_token_threshold": 4}
        scheduler, one = self.queued(10, 1, **options)
        self.check("not chunked, threshold 4, prompt 10, 32 left, R0 waits", scheduler, one, 32, 10, cause)
        scheduler, a, b = machine(32, **options), request("A", 10, 2), request("B", 10, 2)
        queue(scheduler, a, b)
        where = "not chunked, threshold 4, A10 and B10 wait, budget 32"
        expect(where, "schedule()", scheduler.schedule().tokens, {a: 10, b: 10}, cause, MUCH)

    def test_a_threshold_caps_a_return_too(self):
        scheduler, one = machine(long_prefill_token_threshold=3), request("A", 6, 6, made=2)
        queue(scheduler, one, request("R0", 2, 2))
        cause = (
            "what an eviction threw away is computed again in chunks like a prompt: the threshold asks for the gap alone"
        )
        self.check("threshold 3, A comes back with 6 + 2 tokens, R0 waits", scheduler, one, 8, 3, cause)

    def test_a_threshold_caps_a_chunk_while_others_wait(self):
        cause = "the smallest of gap, budget and long_prefill_token_threshold; R0 waits for what it leaves"
        self.check("threshold 3, prompt 13, R0 waits", *self.queued(13, 1, long_prefill_token_threshold=3), 8, 3, cause)

    def test_a_threshold_caps_a_chunk_while_others_run(self):
        scheduler, one = self.queued(13, long_prefill_token_threshold=3)
        seat(scheduler, request("A", 3, 6, made=1))
        self.check("threshold 3, prompt 13, A runs", scheduler, one, 8, 3, "A is somebody else who is there")

    def test_a_lone_request_is_not_held_back(self):
        cause = "with nobody else running or waiting the threshold only makes it later: it does not apply"
        scheduler, one = self.queued(13, long_prefill_token_threshold=3)
        self.check("threshold 3, prompt 13, it waits alone", scheduler, one, 8, 8, cause)
        scheduler = machine(long_prefill_token_threshold=3)
        midway(scheduler, one := request("L", 13, 3), 3)
        self.check("threshold 3, prompt 13, it runs alone", scheduler, one, 8, 8, cause)

    def test_a_threshold_is_no_promise(self):
        cause = "the *smallest* of the three: the budget left, 2, is below the threshold"
        self.check("threshold 3, 2 left, R0 waits", *self.queued(13, 1, long_prefill_token_threshold=3), 2, 2, cause)
        cause = "the *smallest* of the three: it lacks 2, and a threshold of 3 is no reason to compute more"
        self.check("threshold 3, prompt 2, R0 waits", *self.queued(2, 1, long_prefill_token_threshold=3), 8, 2, cause)

    def test_a_threshold_of_zero_is_none(self):
        self.check("threshold 0, R0 waits", *self.queued(13, 1), 8, 8, "0 means no limit, not chunks of 0")


class TestSchedule:
    """Exercise 2: ChunkedScheduler.schedule."""

    def busy(self, **options):
        """A and B in mid-answer, L (prompt 13) with 4 tokens computed, S waits."""
        scheduler = machine(**options)
        a, b, long, short = (request(x, n, 6, made=m) for x, n, m in (("A", 3, 1), ("B", 4, 1), ("L", 13, 0), ("S", 2, 0)))
        seat(scheduler, a, b)
        midway(scheduler, long, 4)
        queue(scheduler, short)
        return scheduler, a, b, long, short

    WHERE = "budget 8; A and B are in mid-answer, L has 4 of its 13, S waits"

    def test_a_step_mixes_decodes_and_a_chunk(self):
        scheduler, a, b, long, _ = self.busy()
        cause = "one pass over all that run, in order: A and B take 1 each, L what is left, 6 of its 9"
        expect(self.WHERE, "schedule()", scheduler.schedule().tokens, {a: 1, b: 1, long: 6}, cause, STEP)

    def test_running_ones_come_before_those_who_wait(self):
        scheduler = machine()
        a, new = request("A", 3, 6, made=1), request("N", 20, 2)
        seat(scheduler, a)
        queue(scheduler, new)
        where, cause = (
            "A is in mid-answer, N (prompt 20) waits, budget 8",
            "decode_pass first, then admit_pass with the rest",
        )
        expect(where, "schedule()", scheduler.schedule().tokens, {a: 1, new: 7}, cause, STEP)

    def test_decodes_are_not_served_after_the_chunks(self):
        scheduler = machine()
        a, long = request("A", 3, 6, made=1), request("L", 30, 2)
        seat(scheduler, a)
        midway(scheduler, long, 4)
        where, cause = "A decodes, L has 4 of its 30", "`running` is walked in its own order, whatever anybody lacks"
        expect(where, "schedule()", scheduler.schedule().tokens, {a: 1, long: 7}, cause, STEP)

    def test_two_prompts_share_a_step(self):
        scheduler = machine()
        one, other = request("L", 5, 2), request("M", 9, 2)
        queue(scheduler, one, other)
        cause = "what one prompt leaves of the budget is for the next in line"
        expect("L5 and M9 wait, budget 8", "schedule()", scheduler.schedule().tokens, {one: 5, other: 3}, cause, STEP)

    def test_what_is_left_of_the_budget_is_noted(self):
        scheduler = machine(blocks=12)
        seat(scheduler, request("A", 3, 6, made=1))
        batch = scheduler.schedule()
        cause = "write it to `batch.budget_left`: `explain` asks with it why the others wait"
        expect("A runs alone, budget 8", "batch.budget_left", batch.budget_left, 7, cause, STEP)

    def test_a_step_that_computes_nothing_has_all_of_its_budget_left(self):
        scheduler = machine(blocks=2, watermark=0.5)
        queue(scheduler, request("L", 8, 2), request("M", 2, 2))
        batch = scheduler.schedule()
        cause = (
            "nothing was spent: note what is left also of a step without tokens, or `explain` says that the budget is short"
        )
        expect("L needs 2 blocks and 1 is free", "batch.budget_left", batch.budget_left, 8, cause, STEP)
        expect("M would fit", "explain()['M']", scheduler.explain(batch)["M"].rule, "behind", cause, STEP)

    def test_each_step_begins_with_a_new_batch(self):
        scheduler = machine()
        seat(scheduler, request("A", 3, 6, made=1))
        first = scheduler.schedule()
        scheduler.update(first, sampled(first))
        second = scheduler.schedule()
        if second is first or second is not scheduler.batch:
            mismatch("two steps", "schedule()", "the same Batch twice", "a new one", "begin `self.batch` anew", STEP)
        expect("A runs alone", "the second step", sum(second.tokens.values()), 1, "begin `self.batch` anew", STEP)

    def test_prompts_first_computes_no_decode_beside_a_prompt(self):
        scheduler, _, _, long, _ = self.busy(prefill_first=True)
        cause = "`prefill_first`: prompts and decodes never share a step; L's chunk is due, so A and B wait"
        expect(f"prefill_first, {self.WHERE}", "schedule()", scheduler.schedule().tokens, {long: 8}, cause, STEP)

    def test_prompts_first_leaves_the_rest_of_a_step_empty(self):
        scheduler = machine(prefill_first=True)
        a, long = request("A", 3, 6, made=1), request("L", 13, 2)
        seat(scheduler, a)
        midway(scheduler, long, 8)
        cause = "a chunk of a running prompt is a prompt too: ask whether `batch.tokens` is empty, not who was admitted"
        expect("prefill_first, L lacks 5, A decodes", "schedule()", scheduler.schedule().tokens, {long: 5}, cause, STEP)

    def test_prompts_first_admits_before_it_decodes(self):
        scheduler = machine(prefill_first=True)
        seat(scheduler, request("A", 3, 6, made=1))
        short = request("S", 2, 2)
        queue(scheduler, short)
        cause = "admit_pass comes before the decodes; they run only in a step without any prompt"
        expect("prefill_first, A decodes, S waits", "schedule()", scheduler.schedule().tokens, {short: 2}, cause, STEP)

    def test_prompts_first_decodes_when_no_prompt_is_there(self):
        scheduler = machine(prefill_first=True)
        a, b = request("A", 3, 6, made=1), request("B", 4, 6, made=2)
        seat(scheduler, a, b)
        cause = "with no prompt computed `batch.tokens` is empty: then decode_pass over the others"
        expect("prefill_first, A and B decode", "schedule()", scheduler.schedule().tokens, {a: 1, b: 1}, cause, STEP)

    def test_prompts_first_decodes_when_no_prompt_can_be_admitted(self):
        scheduler = machine(prefill_first=True, seats=1)
        a = request("A", 3, 6, made=1)
        seat(scheduler, a)
        queue(scheduler, request("S", 2, 2))
        cause = "S waits for a seat, so this step has no prompt: A gets its token, or nobody ever would"
        expect("prefill_first, one seat, A has it", "schedule()", scheduler.schedule().tokens, {a: 1}, cause, STEP)

    def test_a_returning_request_counts_as_a_prompt(self):
        scheduler = machine(prefill_first=True)
        back, a = request("B", 4, 9, made=4), request("A", 3, 6, made=1)
        midway(scheduler, back, 3)
        seat(scheduler, a)
        cause = "B is behind by 5 of its 4 + 4: it recomputes, so it is served with the prompts"
        expect("prefill_first, B is half recomputed", "schedule()", scheduler.schedule().tokens, {back: 5}, cause, STEP)


class TestSamples:
    """Exercise 3: ChunkedScheduler.samples."""

    class Eager(FakeRunner):
        """A runner like a real one: it has scores behind the last token of every chunk, and samples from all of them."""

        def execute(self, batch):
            return {one.id: [fake_token([*one.prompt, *one.output][: one.num_computed_tokens])] for one in batch.tokens}, 1

    def test_a_chunk_that_is_not_the_last_yields_nothing(self):
        scheduler, one = machine(), request("L", 13, 3)
        midway(scheduler, one, 8)
        cause = "what follows token 8 is known: it is the prompt's ninth. Only behind the last known token is something new"
        expect("8 of 13 are computed", "samples(L)", scheduler.samples(one), False, cause, TOKEN)

    def test_the_last_chunk_yields_a_token(self):
        scheduler, one = machine(), request("L", 13, 3)
        midway(scheduler, one, 13)
        expect("13 of 13 are computed", "samples(L)", scheduler.samples(one), True, "all that is known is computed", TOKEN)

    def test_a_returning_request_repeats_its_outputs_before_it_makes_another(self):
        scheduler, one = machine(), request("A", 3, 6, made=4)
        midway(scheduler, one, 5)
        cause = "compare with num_tokens, not with the prompt: two of its four outputs are still to be computed again"
        expect("A, 3 + 4 tokens, has 5 computed again", "samples(A)", scheduler.samples(one), False, cause, TOKEN)

    def test_update_drops_what_an_eager_runner_samples_too_early(self):
        requests = [request("L", 13, 3), request("S", 2, 2)]
        report = Engine(machine(), self.Eager(), requests).run(50)
        where, cause = "L's prompt takes two steps; the runner samples in both", "drop it: ask `samples` in `update`"
        expect(where, "L's output", requests[0].output, lone_output(requests[0]), cause, TOKEN)
        expect(where, "the run's end", report.end, "done", cause, TOKEN)


class TestGate:
    """Exercise 4: ChunkedScheduler.gate."""

    def check(self, where, scheduler, one, chunk, want, cause):
        free = scheduler.pool.num_free
        got = scheduler.gate(one, chunk)
        expect(where, f"gate({one.id}, {chunk})", got, want, cause, JOIN)
        cause = "the gate only asks: `compute` takes blocks, for the chunk and not for more"
        expect(where, "free blocks after gate()", scheduler.pool.num_free, free, cause, JOIN)

    def test_chunk_asks_for_the_first_chunk(self):
        scheduler, one = machine(), request("L", 30, 3)
        queue(scheduler, one)
        self.check(
            "admission chunk, prompt 30, chunk 8", scheduler, one, 8, 2, "pool.missing(request, chunk): 8 / 4 blocks"
        )

    def test_full_prompt_asks_for_all_that_is_known(self):
        scheduler, one = machine(admission="full_prompt"), request("L", 30, 3)
        queue(scheduler, one)
        cause = "pool.missing for the whole gap: 30 tokens are 8 blocks of 4, whatever the first chunk is"
        self.check("admission full_prompt, prompt 30, chunk 8", scheduler, one, 8, 8, cause)

    def test_what_it_has_already_is_not_asked_for_again(self):
        where = "L, prompt 30, has computed 6 of it and holds 2 blocks"
        cause = "pool.missing counts from what is computed and takes off the blocks it holds: 6 + 5 tokens, 3 blocks, 2 are there"
        scheduler = machine()
        one = midway(scheduler, request("L", 30, 3), 6)
        self.check(f"admission chunk, {where}", scheduler, one, 5, 1, cause)
        cause = "the next n tokens of `missing` are the gap, 30 - 6, not num_tokens: 8 blocks in all, 2 are there"
        scheduler = machine(admission="full_prompt")
        one = midway(scheduler, request("L", 30, 3), 6)
        self.check(f"admission full_prompt, {where}", scheduler, one, 5, 6, cause)

    def test_the_watermark_is_not_the_gates(self):
        cause = "`why_wait` takes the watermark off the free blocks; added here as well, it is kept back twice"
        for admission, want in (("chunk", 2), ("full_prompt", 8)):
            scheduler, one = machine(blocks=12, watermark=0.25, admission=admission), request("L", 30, 3)
            queue(scheduler, one)
            self.check(f"admission {admission}, 3 of 12 blocks kept back, prompt 30", scheduler, one, 8, want, cause)

    def test_full_prompt_is_content_with_an_exact_fit(self):
        scheduler, one = machine(blocks=8, admission="full_prompt"), request("L", 32, 1)
        queue(scheduler, one)
        cause = (
            "the token that it will sample is not known yet: 32 tokens are 8 blocks of 4, and whoever fits exactly joins"
        )
        self.check("admission full_prompt, prompt 32", scheduler, one, 8, 8, cause)
        got = ids(scheduler.schedule().admitted)
        expect("admission full_prompt, prompt 32, all 8 blocks are free", "admitted", got, ["L"], cause, JOIN)

    def test_full_prompt_counts_the_outputs_of_who_returns(self):
        scheduler, one = machine(admission="full_prompt"), request("A", 3, 9, made=6)
        queue(scheduler, one)
        cause = "it must store prompt and output again: 3 + 6 tokens, 3 blocks of 4"
        self.check("admission full_prompt, 3 + 6 tokens", scheduler, one, 8, 3, cause)

    def test_room_for_a_chunk_lets_a_long_prompt_in(self):
        cause = {
            "chunk": "8 tokens need 2 blocks, and 4 are free",
            "full_prompt": "30 tokens need 8 blocks, and 4 are free",
        }
        for admission, joins in (("chunk", True), ("full_prompt", False)):
            scheduler = machine(blocks=10, admission=admission)
            seat(scheduler, request("A", 24, 6, made=1))
            queue(scheduler, request("L", 30, 3))
            got = "L" in ids(scheduler.schedule().admitted)
            expect(f"admission {admission}, 4 of 10 blocks are free", "L joins", got, joins, cause[admission], JOIN)

    def test_what_a_gate_checked_is_not_reserved(self):
        scheduler = machine(blocks=10, admission="full_prompt")
        one, other = request("L", 24, 3), request("M", 20, 3)
        queue(scheduler, one, other)
        run = Run(scheduler)
        run.step()
        cause = "L asked for 6 blocks and took 2, those of its chunk: a check, not a reservation"
        expect("L (24) has joined with a chunk of 8", "blocks it holds", len(one.blocks), 2, cause, JOIN)

    def test_half_of_a_prompt_is_enough_budget_to_join(self):
        scheduler = machine()
        seat(scheduler, *(request(x, 3, 6, made=1) for x in "ABC"))
        one = request("L", 13, 3)
        queue(scheduler, one)
        wait = scheduler.why_wait(one, 1)
        cause = "with chunks one token of the budget is enough: it takes what there is"
        expect("one token is left, L has 13", "why_wait(L)", wait, None, cause, JOIN)


class TestLongestGap:
    """Exercise 5: longest_gap."""

    def check(self, log, want, cause):
        expect(f"log {log}", "longest_gap()", longest_gap(log), want, cause, GAP)

    def test_two_tokens_in_neighbouring_steps(self):
        cause = "between A's two tokens lies the step that makes the second: 10 tokens, A's own among them"
        self.check([(3, ["A"]), (10, ["A"])], {"A": 10}, cause)

    def test_steps_in_between_are_summed(self):
        cause = "A waits through 8 and 8 tokens, and 5 more in the step that makes its next: 21"
        self.check([(3, ["A"]), (8, []), (8, []), (5, ["A"])], {"A": 21}, cause)

    def test_the_largest_of_its_gaps_counts(self):
        self.check([(3, ["A"]), (9, ["A"]), (2, ["A"])], {"A": 9}, "the largest, not the last, nor the mean")

    def test_the_wait_for_the_first_token_is_no_gap(self):
        cause = "what stood before the first token is TTFT; a gap lies between two tokens"
        self.check([(50, []), (3, ["A"]), (2, ["A"])], {"A": 2}, cause)

    def test_a_request_with_one_token_has_no_gap(self):
        self.check([(3, ["A"]), (2, [])], {}, "at least two tokens make a gap: A has no entry, not even 0")
        self.check([], {}, "nothing happened")

    def test_each_request_has_its_own(self):
        log = [(4, ["A"]), (6, ["B"]), (3, ["A", "B"]), (7, ["B"])]
        self.check(log, {"A": 9, "B": 7}, "A: 6 + 3 between its two; B: 3, then 7")

    def test_any_collection_of_ids_will_do(self):
        self.check([(3, ("A",)), (4, {"A"})], {"A": 4}, "walk over the ids, don't index them")


class TestExactTraces:
    """The lesson's examples, step by step."""

    def test_the_running_example_chunked(self):
        sizes = ((3, 6), (4, 5), (5, 3), (2, 3))
        run = Run(machine(blocks=5), [request(name, *size) for name, size in zip("ABCD", sizes)])
        table = [
            "A3 B4 C1 | D waits: budget 1 > 0",
            "A1 B1 C4 | D waits: blocks 1 > 0",
            "A1 B1 | C evicted, C waits: eviction 1 > 0",
            "A1 B1 | C waits: blocks 2 > 1",
            "A1 B1 | C waits: blocks 2 > 1, B done",
            "A1 C6 D1 | A done",
            "C1 D1 | C done",
            "D1",
            "D1 | D done",
        ]
        expect_steps("the running example", run, table, EXAMPLE)

    def test_the_evil_twin_finishes(self):
        run = Run(machine(blocks=5), [request(name, *size) for name, size in zip("ABD", ((4, 8), (4, 8), (2, 3)))])
        run.to_end()
        cause = "s10's B waited for ever: 9 tokens, and no step has more than 8. In chunks it comes back"
        expect("the evil twin", "finished", sorted(ids(run.finished)), ["A", "B", "D"], cause, EXAMPLE)

    LONG = (("A", 3, 6), ("B", 4, 4), ("L", 19, 2), ("S", 2, 2))

    def test_a_long_prompt_beside_two_decodes(self):
        table = [
            "A3 B4 L1 | S waits: budget 1 > 0",
            "A1 B1 L6 | S waits: budget 1 > 0",
            "A1 B1 L6 | S waits: budget 1 > 0",
            "A1 B1 L6 | S waits: budget 1 > 0, B done",
            "A1 L1 S2 | L done",
            "A1 S1 | A done, S done",
        ]
        expect_steps("a prompt of 19", Run(machine(), [request(*one) for one in self.LONG]), table, EXAMPLE)

    def test_a_threshold_lets_a_short_one_pass(self):
        table = [
            "A3 B4 L1 | S waits: budget 1 > 0",
            "A1 B1 L4 S2",
            "A1 B1 L4 S1 | S done",
            "A1 B1 L4 | B done",
            "A1 L4",
            "A1 L2 | A done",
            "L1 | L done",
        ]
        run = Run(machine(long_prefill_token_threshold=4), [request(*one) for one in self.LONG])
        expect_steps("the same with a threshold of 4", run, table, MUCH)

    def spike(self, **options):
        """C01: four in mid-answer (prompt 16, 12 outputs), and at step 5 a prompt of 2,048."""
        load = [request(x, 16, 12) for x in "PQRS"] + [request("L", 2048, 2, arrival=5)]
        return longest_gap(logged(Run(machine(512, 8, 1000, 16, **options), load)))

    def test_the_spike_is_the_budget_and_not_the_prompt(self):
        gaps = self.spike()
        cause = "mixed: each of the four has its token in every step, and no step is beyond 512"
        for name in "PQRS":
            expect("a prompt of 2,048 beside four decodes", f"longest gap of {name}", gaps[name], 512, cause, GAP)

    def test_chunks_without_mixing_are_no_cure(self):
        gaps = self.spike(prefill_first=True)
        cause = "prompts first: four steps of L's chunks alone, then one of the decodes: 2,048 + 5"
        expect("the same, prefill_first", "longest gap of P", gaps["P"], 2053, cause, GAP)

    def test_more_decodes_than_budget_never_make_a_negative_chunk(self):
        """C09."""
        scheduler = machine(budget=4, seats=8, blocks=100, block_size=16, allow_small_budget=True)
        load = [request(f"r{i}", 4, 8) for i in range(6)]
        run = run_to_end(scheduler, load)
        expect("six decodes, budget 4", "steps", run.now, 20, "never over 4, never a chunk below 1", STEP)

    def test_every_budget_runs_a_prompt_that_is_longer(self):
        for budget in (1, 2, 7, 16, 40):
            run = Run(machine(budget, 1, 20), [request("L", 33, 4)])
            run.to_end()
            want = -(-33 // budget) + 3
            cause = "the prompt in ceil(33 / budget) steps, the last of which makes a token; then three more"
            expect(f"prompt 33, 4 outputs, budget {budget}", "steps", run.now, want, cause, MUCH)

    def test_a_chunk_costs_what_it_computes(self):
        scheduler = machine()
        long, short = request("L", 6, 2), request("S", 30, 2)
        queue(scheduler, long, short)
        cause = "a chunk of n takes n tokens of the budget: not the whole prompt, and not nothing"
        expect("L6 and S30 wait, budget 8", "schedule()", scheduler.schedule().tokens, {long: 6, short: 2}, cause, MUCH)
        expect("L6 and S30 wait, budget 8", "batch.budget_left", scheduler.batch.budget_left, 0, cause, MUCH)

    def test_a_chunk_takes_blocks_for_itself_only(self):
        scheduler, one = machine(), request("L", 30, 2)
        queue(scheduler, one)
        scheduler.schedule()
        cause = "`compute` takes the blocks of the chunk, 2 of 4 tokens; what is reserved early, nobody else can use"
        expect("prompt 30, a chunk of 8", "blocks", len(one.blocks), 2, cause, JOIN)

    def test_a_chunk_may_evict_more_than_one(self):
        scheduler = machine(budget=12, blocks=4)
        long, b, c = request("L", 20, 2), request("B", 3, 6, made=1), request("C", 3, 6, made=1)
        midway(scheduler, long, 4)
        seat(scheduler, b, c)
        batch = Run(scheduler).schedule()
        where, cause = "L's chunk of 12 lacks 3 blocks, 1 is free", "`while`, not `if`: C gives one, B another"
        expect(where, "preempted", batch.preempted, [c, b], cause, STEP)
        expect(where, "schedule()", batch.tokens, {long: 12}, cause, STEP)

    def test_an_evicted_prompt_starts_again_and_samples_once(self):
        load = [request("A", 4, 12), request("L", 14, 3)]
        run = run_to_end(machine(blocks=5), load)
        got = (load[1].output, run.scheduler.pool.num_free)
        cause = "thrown away in mid-prompt, it computes its chunks again and has made no token in between"
        expect("A grows, L is evicted", "L's output, free blocks", got, (lone_output(load[1]), 5), cause, TOKEN)


def logged(run: Run) -> list[tuple[int, list[str]]]:
    """Run to the end; returns the log that `longest_gap` reads."""
    log = []
    while run.arrivals or run.scheduler.waiting or run.scheduler.running:
        batch = run.schedule()
        made = {one.id: one.num_output_tokens for one in batch.tokens}
        run.update(batch)
        log.append((sum(batch.tokens.values()), [one.id for one in batch.tokens if one.num_output_tokens > made[one.id]]))
        if run.now > 1000:
            run.stuck(batch, 1)
    return log


@dataclass(frozen=True)
class Load:
    """A random load and a machine on which each of it can run, but not all together; some prompts are beyond the budget."""

    sizes: list[tuple[int, int, int, int]]  # prompt, max_tokens, arrival, priority
    block_size: int
    spare_blocks: int
    kept_back: int
    budget: int
    seats: int
    threshold: int
    options: dict

    def requests(self):
        return [
            request(f"R{i}", prompt, tokens, arrival=arrival, priority=priority)
            for i, (prompt, tokens, arrival, priority) in enumerate(self.sizes)
        ]

    def machine(self, policy: str = "fcfs", more_blocks: int = 0, **options) -> ChunkedScheduler:
        slots = max(one.max_kv_slots for one in self.requests())
        blocks = -(-slots // self.block_size) + self.spare_blocks + self.kept_back + more_blocks
        watermark = (self.kept_back + 0.5) / blocks if self.kept_back else 0.0
        seats = min(self.seats, self.budget)
        options = {**self.options, "long_prefill_token_threshold": self.threshold, "policy": policy, **options}
        return machine(self.budget, seats, blocks, self.block_size, watermark=watermark, **options)


sizes = st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(0, 6), st.integers(0, 2))
loads = st.builds(
    Load,
    sizes=st.lists(sizes, min_size=2, max_size=8),
    block_size=st.integers(1, 4),
    spare_blocks=st.integers(0, 3),
    kept_back=st.integers(0, 1),
    budget=st.integers(1, 12),
    seats=st.integers(1, 5),
    threshold=st.sampled_from((0, 0, 1, 3)),
    options=st.fixed_dictionaries({"prefill_first": st.booleans(), "admission": st.sampled_from(("chunk", "full_prompt"))}),
)


class TestRandomTightLoads:
    """Properties that hold whatever comes: Run checks budget, chunks, seats, queues and memory after every step."""

    @pytest.mark.parametrize("policy", POLICIES)
    @given(load=loads)
    def test_everything_finishes_at_any_budget(self, policy, load):
        run = run_to_end(load.machine(policy), load.requests())
        where = f"{policy}, budget {load.budget}, {len(load.sizes)} requests"
        expect(where, "refused", run.refused, {}, "with chunks no prompt is too long for a step", MUCH)
        expect(where, "finished", len(run.finished), len(load.sizes), "each finishes once, in `update`", STEP)
        expect(where, "free blocks", run.scheduler.pool.num_free, run.scheduler.pool.num_blocks, "all come back", STEP)

    @given(load=loads)
    def test_tokens_never_depend_on_the_schedule(self, load):
        want = [lone_output(one) for one in load.requests()]
        for policy in POLICIES:
            for runner in (FakeRunner(), TestSamples.Eager()):
                requests = load.requests()
                Engine(load.machine(policy), runner, requests).run(3000)
                cause = "a token was lost or made too early: only the last chunk yields one"
                expect(
                    f"{policy}, {type(runner).__name__}", "outputs", [one.output for one in requests], want, cause, TOKEN
                )

    @given(load=loads)
    def test_with_ample_memory_the_longest_gap_is_the_budget(self, load):
        gaps = longest_gap(logged(Run(load.machine(more_blocks=200, prefill_first=False), load.requests())))
        worst = max(gaps, key=lambda name: gaps[name], default=None)
        if worst is not None and gaps[worst] > load.budget:
            cause = "who is in mid-answer gets a token in every step, and no step is beyond the budget"
            got = f"{gaps[worst]} tokens of {worst}"
            mismatch(f"budget {load.budget}, nobody evicted", "longest gap", got, f"at most {load.budget}", cause, GAP)

    @given(load=loads)
    def test_prompts_first_never_mixes(self, load):
        run = Run(load.machine(prefill_first=True), load.requests())
        while run.arrivals or run.scheduler.waiting or run.scheduler.running:
            before = {one.id: run.scheduler.decodes(one) for one in [*run.scheduler.running, *run.scheduler.waiting]}
            batch = run.schedule()
            kinds = {before.get(one.id, False) for one in batch.tokens}
            cause = (
                "prompts and decodes never share a step; a decode is who lacks one token, the last it sampled. "
                "The second admit_pass comes only after an eviction, which lets nobody in"
            )
            expect(run.at(run.now + 1), "kinds in one step", len(kinds) < 2, True, cause, STEP)
            run.update(batch)
            if run.now > 1000:
                run.stuck(batch, 1)

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
            if run.now > 1000:
                run.stuck(batch, 1)
        got = [one.id for one in run.requests if one.finish_reason is None]
        expect("after the run", "still live", got, [], "everything ends, aborted or not", STEP)

    @given(load=loads)
    def test_without_chunks_it_is_the_scheduler_of_s10(self, load):
        from s10_scheduler import Scheduler

        rows = []
        for make in (Scheduler, ChunkedScheduler):
            config = Config(
                max_num_batched_tokens=40, max_num_seqs=4, num_blocks=12, block_size=4, watermark=0.0, chunked_prefill=False
            )
            run = Run(make(config), load.requests())
            steps = []
            while run.arrivals or run.scheduler.waiting or run.scheduler.running:
                batch = run.step()
                steps.append(({one.id: n for one, n in batch.tokens.items()}, ids(batch.preempted)))
                if run.now > 500:
                    run.stuck(batch, 1)
            rows.append(steps)
        cause = "`chunked_prefill` off: whole prompts only, nothing else changes"
        expect("chunked_prefill off", "the steps", rows[1], rows[0], cause, MUCH)


FIELD_CASES = [
    pytest.param(name, case, id=name)
    for name, case in read_workloads(Path(__file__).parent / "data" / "field_cases.json")
    if case.get("scheduler") == "s11"
]


class TestFieldCases:
    """Small inputs distilled from public bug reports against real engines: tests/data/field_cases.json."""

    @pytest.mark.parametrize("name, case", FIELD_CASES)
    def test_a_field_case_replays_with_the_right_numbers(self, name, case):
        got, want = replay(case, ChunkedScheduler, "s11"), case["expect"]
        where, cause = f"field case {name}: {case['title']}", case["right"]
        for key, value in want.items():
            if key == "schedule":
                expect(where, "schedule", got.schedule[: len(value)], value, cause, STEP)
            elif key != "requests":
                expect(where, key, got.totals[key], value, cause, STEP)
        for id, row in want["requests"].items():
            expect(f"{where}, request {id}", "its row", got.requests[id], row, cause, STEP)

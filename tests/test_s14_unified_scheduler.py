"""s14: one rule. Exercise by exercise, then hand-made traces with a rule each, the two groups that chance misses, and properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.config import Config
from kit.decisions import first_divergence, replay
from kit.errors import DuplicateRequest, RequestRefused
from kit.request import Request
from kit.worker import Worker, WorkerError, message
from kit.workloads import read_workloads
from s14_unified_scheduler import LongestPrefixFirst, SchedulerOutput, UnifiedScheduler
from support import Run, attempt, expect, lone_output, mismatch, queue, request, run_to_end, sampled, seat, show

SIZE = "s14_unified_scheduler/How far a step goes"
YIELD = "s14_unified_scheduler/Who gives way"
JOIN = "s14_unified_scheduler/Who joins"
CACHE = "s14_unified_scheduler/What is remembered"
AFTER = "s14_unified_scheduler/What a step leaves behind"
HUNT = "s14_unified_scheduler/The bug hunt"
ORDER = "s14_unified_scheduler/Whose turn it is"


def machine(budget: int = 12, seats: int = 4, blocks: int = 20, safe: bool = False, **options) -> UnifiedScheduler:
    """Blocks of 4 tokens, no watermark, no cache, unless told otherwise."""
    limits = dict(max_num_batched_tokens=budget, max_num_seqs=seats, num_blocks=blocks, block_size=4)
    return UnifiedScheduler(Config(**{**limits, "watermark": 0.0, "allow_small_budget": True, **options}), safe)


def ask(id: str, prompt: Sequence[int], max_tokens: int = 4, arrival: int = 0, priority: float = 0) -> Request:
    """A request with this very prompt, so that prompts can be alike."""
    return Request(id, prompt, max_tokens, arrival, priority)


def half_done(scheduler: UnifiedScheduler, request: Request, computed: int) -> Request:
    """Let a request run, with so many of its tokens computed."""
    queue(scheduler, request)
    scheduler.waiting.remove(request)
    scheduler.pool.grow(request, computed)
    request.num_computed_tokens = computed
    scheduler.running.append(request)
    return request


def remember(scheduler: UnifiedScheduler, prompt: Sequence[int]) -> list[int]:
    """Leave the full blocks of a prompt in the cache, owned by nobody. Returns them."""
    first = ask("past", prompt)
    names = scheduler.chain(first)
    blocks = scheduler.pool.allocate(len(names))
    scheduler.pool.register(blocks, names)
    scheduler.pool.free(reversed(blocks))
    return blocks


def ids(requests) -> list[str]:
    return [one.id for one in requests]


class TestStepSize:
    """Exercise 1: UnifiedScheduler.step_size (R0, R1)."""

    def size(self, n, scheduler, one, computed, budget, cause, where) -> None:
        expect(
            where, f"step_size({one.id}, {computed}, {budget})", scheduler.step_size(one, computed, budget), n, cause, SIZE
        )

    @pytest.mark.parametrize(
        "made, computed, n, where",
        [
            (0, 0, 9, "a new request with a prompt of 9"),
            (0, 4, 5, "4 of its 9 prompt tokens were computed, or found"),
            (3, 11, 1, "it has 9 + 3 tokens and has just sampled the last of them"),
            (3, 0, 12, "it was evicted with 9 + 3 tokens"),
            (3, 12, 0, "it has caught up"),
        ],
    )
    def test_a_request_is_behind_by_what_is_known_and_not_computed(self, made, computed, n, where):
        scheduler = machine()
        one = request("A", 9, 9, made=made)
        cause = "num_tokens - computed: prompts, decodes and returns are one and the same"
        self.size(n, scheduler, one, computed, 100, cause, where)

    def test_the_budget_cuts_it(self):
        one = request("A", 9, 9)
        for budget, n in ((8, 8), (9, 9), (10, 9)):
            self.size(n, machine(), one, 0, budget, "R1: the smaller of what it lacks and what is left", "A lacks 9")

    @pytest.mark.parametrize("place", ["running", "waiting"])
    def test_the_threshold_caps_a_long_one_while_another_is_there(self, place):
        scheduler = machine(long_prefill_token_threshold=4)
        one, other = request("A", 9, 9), request("B", 3, 3)
        half_done(scheduler, one, 0)
        half_done(scheduler, other, 1) if place == "running" else queue(scheduler, other)
        cause = "R0: long_prefill_token_threshold caps what it lacks, while running and waiting are more than one"
        self.size(4, scheduler, one, 0, 100, cause, f"A lacks 9, the threshold is 4, B is {place}")

    def test_a_lone_request_is_not_cut(self):
        scheduler = machine(long_prefill_token_threshold=4)
        one = half_done(scheduler, request("A", 9, 9), 0)
        cause = "R0: the threshold leaves tokens to others, and there is nobody else: running + waiting is 1"
        self.size(9, scheduler, one, 0, 100, cause, "A is alone and lacks 9, the threshold is 4")

    def test_without_a_threshold_nobody_is_cut(self):
        scheduler = machine()
        one = half_done(scheduler, request("A", 9, 9), 0)
        queue(scheduler, request("B", 3, 3))
        self.size(9, scheduler, one, 0, 100, "a threshold of 0 means that there is none", "A lacks 9, the threshold is 0")


class TestRunningPass:
    """Exercise 2: UnifiedScheduler.running_pass (R1, R2)."""

    def test_each_gets_what_it_lacks_in_the_order_of_running(self):
        scheduler = machine()
        seat(scheduler, request("A", 3, 6, made=1), request("B", 5, 6, made=2))
        half_done(scheduler, request("C", 9, 6), 4)
        left = scheduler.running_pass(12)
        where = "A and B decode, C has computed 4 of 9 prompt tokens; budget 12"
        cause = "walk along `running`; compute step_size of each, whether prompt or decode"
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "A1 B1 C5", cause, SIZE)
        expect(where, "running_pass(12) returned", left, 5, "each pays for what it computes", SIZE)

    def test_it_ends_when_the_budget_is_spent(self):
        scheduler = machine()
        half_done(scheduler, request("A", 9, 6), 0)
        half_done(scheduler, request("B", 9, 6), 0)
        seat(scheduler, request("C", 3, 6, made=1))
        left = scheduler.running_pass(12)
        where, cause = (
            "A and B lack 9 each, C lacks 1; budget 12",
            "R1: in order, while budget is left: B gets a part, C nothing",
        )
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "A9 B3", cause, SIZE)
        expect(where, "running_pass(12) returned", left, 0, cause, SIZE)

    def test_a_running_prompt_is_cut_without_chunked_prefill_too(self):
        scheduler = machine(chunked_prefill=False, long_prefill_token_threshold=8)
        half_done(scheduler, request("A", 20, 6), 8)
        half_done(scheduler, request("B", 20, 6), 8)
        scheduler.running_pass(12)
        cause = "R1: only an admission has to fit in one piece (R4c); who runs is cut to the budget"
        expect(
            "A and B run, 12 behind each, threshold 8", "batch.tokens", show(scheduler.batch.tokens), "A8 B4", cause, SIZE
        )

    def test_one_that_has_caught_up_is_skipped(self):
        scheduler = machine()
        half_done(scheduler, request("A", 3, 6), 3)
        seat(scheduler, request("B", 3, 6, made=1))
        scheduler.running_pass(12)
        where, cause = (
            "A has caught up (its token is still being made), B lacks 1",
            "R1: n = 0 skips it; go on with the others",
        )
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "B1", cause, SIZE)

    def test_fcfs_evicts_the_last(self):
        scheduler = machine(blocks=4)
        seat(scheduler, *(request(name, n, 6, made=1) for name, n in (("A", 4), ("B", 4), ("C", 5))))
        where = "A and B need a second block each, none is free; C was admitted last and holds 2"
        left = attempt(where, "running_pass(12)", YIELD, scheduler.running_pass, 12)
        expect(
            where, "evicted", ids(scheduler.batch.preempted), ["C"], "R2: under FCFS the last of running gives way", YIELD
        )
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "A1 B1", "who is evicted computes nothing", YIELD)
        expect(where, "running_pass(12) returned", left, 10, "who is evicted pays nothing", YIELD)

    def test_an_exact_fit_evicts_nobody(self):
        scheduler = machine(blocks=3)
        seat(scheduler, request("A", 4, 6, made=1), request("B", 3, 2, made=1))
        scheduler.running_pass(12)
        cause = "evict while it lacks *more* blocks than are free"
        expect("A needs one block, one is free", "evicted", ids(scheduler.batch.preempted), [], cause, YIELD)

    def test_one_eviction_may_not_be_enough(self):
        scheduler = machine(blocks=5)
        half_done(scheduler, request("A", 16, 6), 4)
        seat(scheduler, *(request(name, 3, 6, made=1) for name in "BCDE"))
        where = "A wants 12 tokens, three blocks, and none is free; B, C, D and E hold one each"
        attempt(where, "running_pass(12)", YIELD, scheduler.running_pass, 12)
        cause = "R2: evict *while* it lacks more than is free, not once"
        expect(where, "evicted", ids(scheduler.batch.preempted), ["E", "D", "C"], cause, YIELD)
        expect(where, "waiting", ids(scheduler.waiting), ["C", "D", "E"], "R3: the last evicted stands in front", YIELD)

    def test_priority_evicts_the_largest_priority_then_the_latest(self):
        scheduler = machine(blocks=4, policy="priority")
        a = request("A", 4, 6, made=1, priority=0)
        rest = [request(x, 3, 6, made=1, priority=p, arrival=t) for x, p, t in (("B", 2, 5), ("C", 2, 9), ("D", 1, 9))]
        seat(scheduler, a, *rest)
        attempt("A needs a block", "running_pass(12)", YIELD, scheduler.running_pass, 12)
        where = "A needs a block; B, C, D have priorities 2, 2, 1 and arrived at 5, 9, 9"
        expect(where, "evicted", ids(scheduler.batch.preempted), ["C"], "R2: the largest (priority, arrival)", YIELD)

    def test_after_a_victim_before_the_cursor_nobody_is_skipped(self):
        scheduler = machine(blocks=3, policy="priority")
        seat(scheduler, *(request(x, n, 6, made=1, priority=p) for x, n, p in (("A", 3, 9), ("B", 4, 0), ("C", 3, 1))))
        where = "A, B, C have priorities 9, 0, 1; A is served, B needs a block, A is evicted"
        attempt(where, "running_pass(12)", YIELD, scheduler.running_pass, 12)
        cause = "A stood before the cursor: all behind it move up by one, and so must `at`, or C is stepped over"
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "B1 C1", cause, YIELD)

    def test_after_evicting_itself_by_priority_the_pass_goes_on(self):
        scheduler = machine(blocks=3, policy="priority")
        seat(scheduler, *(request(x, n, 6, made=1, priority=p) for x, n, p in (("A", 3, 0), ("B", 4, 9), ("C", 3, 1))))
        where = "A, B, C have priorities 0, 9, 1; B needs a block and is itself the victim"
        attempt(where, "running_pass(12)", YIELD, scheduler.running_pass, 12)
        cause = "R2: those behind B are more important and may fit: go on (vLLM before 0.33 stopped here)"
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "A1 C1", cause, YIELD)

    def test_under_fcfs_a_request_can_evict_itself(self):
        scheduler = machine(blocks=2)
        seat(scheduler, request("A", 3, 6, made=1), request("B", 4, 2, made=1))
        where = "B, the last, needs a block and none is free"
        left = attempt(where, "running_pass(12)", YIELD, scheduler.running_pass, 12)
        cause = "R2: B is the last of running, so B is the victim; it computes and pays nothing"
        expect(where, "evicted", ids(scheduler.batch.preempted), ["B"], cause, YIELD)
        expect(where, "running_pass(12) returned", left, 11, cause, YIELD)


class TestLookUp:
    """Exercise 3: UnifiedScheduler.look_up (R4a)."""

    def test_without_prefix_caching_nothing_is_found(self):
        scheduler = machine()
        remember(scheduler, range(8))
        cause = "prefix_caching is off: return [] before anything is looked up"
        expect("the same prompt was there", "look_up(A)", scheduler.look_up(ask("A", range(9))), [], cause, JOIN)

    def test_the_longest_chain_is_found(self):
        scheduler = machine(prefix_caching=True)
        blocks = remember(scheduler, range(12))
        one = ask("A", [*range(8), *range(90, 99)])
        cause = "pool.lookup(self.chain(request), request.num_tokens)"
        expect("A shares 8 of 12 cached tokens", "look_up(A)", scheduler.look_up(one), blocks[:2], cause, JOIN)

    @pytest.mark.parametrize("length, found", [(8, 1), (9, 2)])
    def test_one_token_is_left_to_compute(self, length, found):
        scheduler = machine(prefix_caching=True)
        blocks = remember(scheduler, range(12))
        cause = "R4a: at most floor((L - 1) / 4) blocks, or nothing is computed that could be sampled from"
        got = scheduler.look_up(ask("A", range(length)))
        expect(f"A's {length} tokens are all cached", "look_up(A)", got, blocks[:found], cause, JOIN)

    def test_outputs_are_found_too(self):
        scheduler = machine(prefix_caching=True)
        one = request("A", 6, 9, made=3)
        blocks = remember(scheduler, [*one.prompt, *one.output])
        cause = "R4a: prompt *and* outputs. An evicted request finds its own KV again: num_tokens, not len(prompt)"
        expect(
            "A was evicted with 6 + 3 tokens, 8 of them cached", "look_up(A)", scheduler.look_up(one), blocks, cause, JOIN
        )


class TestFit:
    """Exercise 4: UnifiedScheduler.fit (R5)."""

    def fits(self, want, where, cause, scheduler, one, hit, tokens) -> None:
        expect(where, f"fit({one.id}, {hit}, {tokens})", scheduler.fit(one, hit, tokens), want, cause, JOIN)

    def test_blocks_for_the_tokens_against_the_free_ones(self):
        scheduler = machine(blocks=5)
        half_done(scheduler, request("R", 8, 2), 5)
        for tokens, needed in ((4, 1), (5, 2), (8, 2)):
            cause = "ceil(tokens / block_size), and pool.num_free"
            self.fits((needed, 3), "two of five blocks are used", cause, scheduler, request("A", 9, 2), [], tokens)

    def test_a_hit_that_somebody_owns_costs_nothing(self):
        scheduler = machine(blocks=5, prefix_caching=True)
        owner = half_done(scheduler, ask("R", range(8)), 8)
        cause = "R5: less the blocks of the hit: R holds them, and A shares them"
        self.fits((1, 3), "A finds R's two blocks", cause, scheduler, ask("A", range(9)), owner.blocks, 9)

    def test_an_idle_hit_is_counted_as_needed(self):
        scheduler = machine(blocks=5, prefix_caching=True)
        hit = remember(scheduler, range(8))
        cause = "R5: an idle hit leaves the free list, so it counts as needed: it can't be handed out a second time"
        self.fits((3, 5), "both blocks of A's hit stand in the free list", cause, scheduler, ask("A", range(9)), hit, 9)

    def test_the_whole_of_it_must_fit_where_the_gate_is_on(self):
        scheduler = machine(blocks=5, admission="full_prompt")
        cause = "R5: with admission full_prompt all that it knows, not its first chunk: num_tokens in place of tokens"
        self.fits((3, 5), "A's prompt has 11 tokens, its first chunk 4", cause, scheduler, request("A", 11, 9), [], 4)

    def test_the_whole_of_it_is_prompt_and_outputs(self):
        scheduler = machine(blocks=5, admission="full_prompt")
        cause = "R5: all that it knows is num_tokens, its outputs too: their KV was lost with the prompt's"
        one = request("A", 11, 9, made=2)
        self.fits((4, 5), "A was evicted with 11 + 2 tokens, its first chunk 4", cause, scheduler, one, [], 4)

    def test_the_watermark_is_kept_for_those_who_run(self):
        scheduler = machine(blocks=20, watermark=0.1)
        half_done(scheduler, request("R", 4, 2), 4)
        cause = "R5: free blocks less watermark_blocks, for admissions only"
        self.fits((2, 17), "19 are free, the watermark is 2", cause, scheduler, request("A", 8, 2), [], 8)

    def test_on_an_empty_machine_no_block_is_kept(self):
        scheduler = machine(blocks=20, watermark=0.1)
        cause = "R5: the watermark holds only if something runs: else there is nobody to keep blocks for"
        self.fits((2, 20), "nobody runs", cause, scheduler, request("A", 8, 2), [], 8)


class TestAdmissionPass:
    """Exercise 5: UnifiedScheduler.admission_pass (R4)."""

    def admitted(self, scheduler: UnifiedScheduler, *requests: Request, budget: int = 12) -> int:
        __tracebackhide__ = True
        queue(scheduler, *requests)
        return attempt("", f"admission_pass({budget})", JOIN, scheduler.admission_pass, budget)

    def test_the_head_of_the_queue_joins(self):
        scheduler = machine()
        a, b = request("A", 5, 2), request("B", 3, 2)
        left = self.admitted(scheduler, a, b)
        where = "A needs 5 tokens, B 3; budget 12, all is free"
        expect(where, "running", ids(scheduler.running), ["A", "B"], "pop it, append it to running", JOIN)
        expect(where, "batch.admitted", ids(scheduler.batch.admitted), ["A", "B"], "list it in batch.admitted", JOIN)
        expect(where, "waiting", ids(scheduler.waiting), [], "it leaves the queue", JOIN)
        expect(where, "admission_pass(12) returned", left, 4, "each pays for its tokens", JOIN)
        expect(where, "batch.head", scheduler.batch.head, None, "nobody waits any more", JOIN)

    def test_the_last_one_is_cut_to_the_budget(self):
        scheduler = machine()
        self.admitted(scheduler, request("A", 5, 2), request("B", 30, 2))
        cause = "R4d: with chunked prefill a part of it joins"
        expect("A lacks 5, B 30; budget 12", "batch.tokens", show(scheduler.batch.tokens), "A5 B7", cause, JOIN)

    def test_without_chunked_prefill_it_waits(self):
        scheduler = machine(chunked_prefill=False)
        self.admitted(scheduler, request("A", 5, 2), request("B", 8, 2))
        cause = "R4c: 8 tokens in one piece, 7 left: stop"
        expect("A lacks 5, B 8; budget 12", "batch.tokens", show(scheduler.batch.tokens), "A5", cause, JOIN)

    def test_nobody_overtakes_the_head(self):
        scheduler = machine(blocks=3)
        self.admitted(scheduler, request("A", 5, 2), request("B", 7, 2), request("C", 3, 2))
        where = "three blocks: A takes two, B needs two, C one"
        expect(
            where, "running", ids(scheduler.running), ["A"], "R4: look at the head only, and stop if it has to wait", JOIN
        )
        got = scheduler.batch.head and scheduler.batch.head[:3]
        expect(where, "batch.head", got, ("blocks", 2, 1), "the answer of why_wait goes to batch.head", JOIN)

    def test_a_waiting_request_evicts_nobody(self):
        scheduler = machine(blocks=2, policy="priority")
        half_done(scheduler, request("R", 8, 2, priority=9), 5)
        self.admitted(scheduler, request("A", 5, 2, priority=0))
        where, cause = "R holds both blocks and is less important than A", "R4d: it does not fit, so it waits"
        expect(where, "running", ids(scheduler.running), ["R"], cause, JOIN)

    def test_nobody_joins_in_a_step_that_evicts(self):
        scheduler = machine(budget=5, blocks=3)
        seat(scheduler, request("A", 4, 6, made=1), request("B", 7, 2, made=1))
        queue(scheduler, request("C", 2, 2))
        batch = scheduler.schedule()
        where = (
            "A's token takes one of B's two blocks; 4 tokens of the budget are left, and B's first 4 would fit the other"
        )
        cause = "R4: after an eviction nobody is admitted, whatever fits"
        expect(where, "running", ids(scheduler.running), ["A"], cause, JOIN)
        expect(where, "waiting", ids(scheduler.waiting), ["B", "C"], "R3: a victim goes to the front", YIELD)
        expect(where, "batch.head", batch.head and batch.head.rule, "eviction", cause, JOIN)

    def test_a_seat_is_needed(self):
        scheduler = machine(seats=2)
        self.admitted(scheduler, *(request(name, 2, 2) for name in "ABC"))
        expect("two seats", "running", ids(scheduler.running), ["A", "B"], "R4: while running < max_num_seqs", JOIN)

    def test_what_was_found_is_neither_computed_nor_paid_for(self):
        scheduler = machine(prefix_caching=True)
        hit = remember(scheduler, range(8))
        a = ask("A", range(10))
        left = self.admitted(scheduler, a)
        where = "8 of A's 10 tokens are cached; budget 12"
        cause = "R4b: look up first, then n = step_size(request, cached tokens, budget)"
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "A2", cause, JOIN)
        expect(where, "admission_pass(12) returned", left, 10, "the budget is charged for what is computed only", JOIN)
        got = (scheduler.batch.hits.get(a), a.num_computed_tokens)
        expect(where, "batch.hits[A], num_computed_tokens", got, (8, 10), "both in tokens, not in blocks", JOIN)
        expect(where, "its first blocks", a.blocks[:2], hit, "self.compute(request, n, hit) puts them into its table", JOIN)

    def test_who_was_evicted_resumes_with_what_it_finds(self):
        scheduler = machine(prefix_caching=True)
        a = request("A", 6, 9, made=3)
        a.num_preemptions = 1
        remember(scheduler, [*a.prompt, *a.output])
        self.admitted(scheduler, a)
        where = "A was evicted with 6 + 3 tokens, 8 of them cached"
        expect(where, "admitted, resumed", (ids(scheduler.batch.admitted), ids(scheduler.batch.resumed)), ([], ["A"]),
               "a request with num_preemptions goes to batch.resumed", JOIN)  # fmt: skip
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "A1", "one rule: 9 known, 8 found, 1 to compute", JOIN)


class TestUpdate:
    """Exercise 6: UnifiedScheduler.update (R9)."""

    def test_a_sampled_token_is_appended(self):
        scheduler = machine()
        a = request("A", 3, 4)
        scheduler.add(a)
        batch = scheduler.schedule()
        finished = scheduler.update(batch, {"A": [7]})
        expect("A samples 7", "output", a.output, [7], "append_tokens(batch, tokens)", AFTER)
        expect("A samples 7, the first of 4", "update() returned", finished, [], "who goes on is not in the list", AFTER)

    def test_who_ends_leaves_at_once(self):
        scheduler = machine()
        a, b = request("A", 3, 1), request("B", 3, 4, stop=[9])
        scheduler.add(a)
        scheduler.add(b)
        finished = scheduler.update(scheduler.schedule(), {"A": [7], "B": [9]})
        where = "A has max_tokens 1, B samples its stop token"
        expect(where, "update() returned", ids(finished), ["A", "B"], "return those who end, in scheduled order", AFTER)
        expect(where, "finish reasons", (a.finish_reason, b.finish_reason), ("length", "stop"),
               "abort(request.id, request.finish_reason) keeps the reason that append_tokens gave", AFTER)  # fmt: skip
        got = (ids(scheduler.running), scheduler.pool.num_free)
        expect(where, "running, free blocks", got, ([], 20), "R9: its blocks are free at once", AFTER)

    def test_the_worker_hears_of_the_end_with_the_next_step(self):
        scheduler = machine()
        scheduler.add(request("A", 3, 1))
        scheduler.update(scheduler.schedule(), {"A": [7]})
        cause = "leave through `abort`: it notes the id for the next SchedulerOutput"
        expect("A has ended", "the next output's finished", scheduler.schedule().finished, ["A"], cause, AFTER)

    def test_who_was_aborted_in_mid_step_is_passed_over(self):
        scheduler = machine()
        a, b = request("A", 3, 2), request("B", 3, 1)
        scheduler.add(a)
        scheduler.add(b)
        batch = scheduler.schedule()
        scheduler.abort("A")
        finished = scheduler.update(batch, {"A": [7], "B": [7]})
        where, cause = "A was aborted while the step ran", "its token reaches nobody; append_tokens passes it over"
        expect(where, "update() returned", ids(finished), ["B"], cause, AFTER)
        expect(where, "A", (a.output, a.finish_reason), ([], "abort"), cause, AFTER)
        expect(where, "free blocks", scheduler.pool.num_free, 20, "its blocks came back when it was aborted", AFTER)


class TestDoor:
    """What `add` refuses, and the two names that it knows."""

    def test_what_fits_the_whole_pool_is_accepted(self):
        scheduler = machine(blocks=5, watermark=0.3)
        scheduler.add(request("A", 17, 4))
        with pytest.raises(RequestRefused, match="6 KV blocks"):
            scheduler.add(request("B", 17, 5))
        where, cause = "A fits the pool, B does not", "a refused request is not kept"
        expect(where, "batch.tokens", show(scheduler.schedule().tokens), "A12", cause, JOIN)

    def test_a_live_id_is_taken(self):
        scheduler = machine()
        scheduler.add(request("A", 3, 1))
        with pytest.raises(DuplicateRequest):
            scheduler.add(request("A", 5, 1))
        scheduler.update(scheduler.schedule(), {"A": [7]})
        scheduler.add(request("A", 5, 1))
        got = show(scheduler.schedule().tokens)
        expect("the first A has ended, another came", "batch.tokens", got, "A5", "an id is free when its owner ends", JOIN)


def follow(where: str, scheduler: UnifiedScheduler, requests: Sequence[Request], rows: str, cause: str, see: str) -> Run:
    """A hand-made trace: one line a step, `A8 B4 | B finds 8, C evicted, A done`; the first that differs fails."""
    __tracebackhide__ = True
    run = Run(scheduler, requests)
    run.name = where
    for number, row in enumerate(filter(None, map(str.strip, rows.splitlines())), 1):
        batch = run.schedule()
        events = [f"{one.id} finds {n}" for one, n in batch.hits.items() if n]
        events += [f"{one.id} evicted" for one in batch.preempted]
        events += [f"{one.id} done" for one in run.update(batch)]
        got = f"{show(batch.tokens) if batch.tokens else '-'} | {', '.join(events)}".removesuffix(" | ")
        if got != row:
            mismatch(run.at(number), "schedule() and update()", got, row, cause, see)
    return run


class TestOneRuleAtATime:
    """Small traces, one for each rule. They agree with vLLM 0.33.0 as far as the recorded ones do."""

    def test_R0_the_threshold_ends_with_the_company(self):
        rows = "A4 B2\nA4 B1 | B done\nA12\nA2\nA1\nA1 | A done"
        cause = "R0: 4 tokens a step while B is there, all of the budget once A is alone"
        load = [request("A", 22, 3), request("B", 2, 2)]
        follow("R0, threshold 4", machine(long_prefill_token_threshold=4), load, rows, cause, SIZE)

    def test_R1_decodes_and_chunks_share_a_step(self):
        rows = "A3 B9\nA1 B11\nA1 B2\nA1 B1 | A done\nB1 | B done"
        cause = "R1: in order of admission, each what it lacks, the last one what the budget leaves"
        follow("R1, budget 12", machine(), [request("A", 3, 4), request("B", 22, 3)], rows, cause, SIZE)

    def test_R2_the_last_gives_way(self):
        rows = "A4 B4\nA1 | B evicted\nA1\nA1\nA1 | A done\nB5\nB1 | B done"
        cause = "R2: A needs a second block, B is the last of running"
        follow("R2, three blocks", machine(blocks=2), [request("A", 4, 5), request("B", 4, 3)], rows, cause, YIELD)

    def test_R3_a_victim_comes_back_in_front_with_its_output(self):
        load = [request("A", 4, 5), request("B", 4, 3), request("C", 3, 1, arrival=1)]
        rows = "A4 B4\nA1 | B evicted\nA1\nA1\nA1 | A done\nB5\nB1 | B done\nC3 | C done"
        cause = "R3: B waits before C, and computes its prompt and the token that its user has read"
        follow("R3, two blocks", machine(blocks=2), load, rows, cause, YIELD)

    def test_R3_by_priority_a_victim_has_no_bonus(self):
        load = [request("A", 4, 5, priority=5), request("B", 7, 3), request("C", 3, 2, arrival=1, priority=2)]
        rows = "B7 A4\nB1 | A evicted\nB1 | B done\nC3 A5\nC1 A1 | C done\nA1\nA1 | A done"
        cause = "R3: A goes back to the place of its (priority, arrival), behind C that has never run"
        follow("R3 by priority", machine(blocks=3, policy="priority"), load, rows, cause, YIELD)

    def test_R4_a_step_that_evicts_admits_nobody(self):
        load = [request("A", 7, 4), request("B", 7, 3), request("C", 2, 1, arrival=1)]
        rows = "A7 B5\nA1 B2\nA1 | B evicted\nA1 | A done\nB8 C2 | C done\nB1 | B done"
        cause = "R4: one block is free after step 3, and C behind B would fit; nobody joins, and nobody overtakes"
        follow("R4, four blocks", machine(blocks=4, seats=3), load, rows, cause, JOIN)

    def test_R4a_a_hit_leaves_one_token(self):
        load = [ask("A", range(9), 2), ask("B", range(8), 2, 3), ask("C", [*range(8), 99, 98], 2, 3)]
        rows = "A9\nA1 | A done\n-\nB4 C2 | B finds 4, C finds 8\nB1 C1 | B done, C done"
        cause = "R4a: B's 8 tokens are all cached, and the look-up stops at floor(7 / 4) = 1 block"
        follow("R4a", machine(prefix_caching=True), load, rows, cause, CACHE)

    def test_R4a_a_victim_finds_its_own_blocks(self):
        load = [ask("A", range(4), 6), ask("B", range(50, 57), 6)]
        rows = """
            A4 B7
            A1 B1
            A1 | B evicted
            A1
            A1
            A1 | A done
            B5 | B finds 4
            B1
            B1
            B1 | B done"""
        cause = "R4a: B knows 9 tokens. Its tail was taken by A, its first block is still cached"
        follow("R4a, four blocks", machine(blocks=4, prefix_caching=True), load, rows, cause, CACHE)

    def test_R5_without_the_gate_a_first_chunk_is_enough(self):
        rows = "A7 B1\nA1 B7\nA1 | B evicted\nA1 B7\nA1 | B evicted\nA1 B7 | A done\nB8\nB1 | B done"
        cause = "R5, admission chunk: there is room for B's first tokens, so it joins, twice too early"
        load = [request("A", 7, 6), request("B", 15, 2)]
        follow("R5, no gate, five blocks", machine(budget=8, blocks=5), load, rows, cause, JOIN)

    def test_R5_with_the_gate_the_whole_prompt_must_fit(self):
        rows = "A7\nA1\nA1\nA1\nA1\nA1 | A done\nB8\nB7\nB1 | B done"
        cause = "R5, admission full_prompt: B's 15 tokens need four blocks, three are free: it waits"
        load = [request("A", 7, 6), request("B", 15, 2)]
        follow("R5, the gate, five blocks", machine(budget=8, blocks=5, admission="full_prompt"), load, rows, cause, JOIN)

    def test_R6_a_cached_block_is_taken_last(self):
        load = [
            ask("A", range(9), 2),
            ask("B", range(50, 57), 2, 2),
            ask("C", range(9), 2, 4),
            ask("D", range(30, 49), 1, 6),
            ask("E", range(9), 2, 8),
        ]
        rows = """
            A9
            A1 | A done
            B7
            B1 | B done
            C1 | C finds 8
            C1 | C done
            D12
            D7 | D done
            E9
            E1 | E done"""
        cause = "R6: B takes blocks without a name, from the front; C finds A's. D takes all five, and E finds nothing"
        follow("R6, five blocks", machine(blocks=5, prefix_caching=True), load, rows, cause, CACHE)

    def test_R7_equal_prompts_of_one_step_share_blocks(self):
        rows = "A9 B1 | B finds 8\nA1 B1 | A done, B done"
        cause = "R7: A's blocks have their names as soon as they are handed out, so B finds them in the same step"
        follow("R7", machine(prefix_caching=True), [ask("A", range(9), 2), ask("B", range(9), 2)], rows, cause, CACHE)

    def test_R8_who_has_not_caught_up_samples_nothing(self):
        cause = "R8: C += n at once, and a request samples iff it has caught up"
        follow("R8, budget 4", machine(budget=4), [request("A", 10, 2)], "A4\nA4\nA2\nA1 | A done", cause, AFTER)

    def test_R9_stop_tokens_and_lengths_end_it(self):
        b = request("B", 3, 9)
        load = [request("A", 6, 5), request("B", 3, 9, stop=[lone_output(b)[2]])]
        cause = "R9: A ends with the model's 8 tokens, B with its stop token"
        rows = "A6 B3\nA1 B1 | A done\nB1 | B done"
        follow("R9, max_model_len 8", machine(max_model_len=8), load, rows, cause, AFTER)

    def test_R9_the_last_token_is_never_stored(self):
        rows = "A4\nA1\nA1\nA1\nA1 | A done"
        cause = "R9: prompt 4 and 5 outputs are stored in 8 slots, two blocks: it ends when the fifth is sampled"
        follow("R9, two blocks", machine(blocks=2), [request("A", 4, 5)], rows, cause, AFTER)


class TestTheRefund:
    """R2: a victim that was served already in this step. Only priority makes one, and in random loads few evictions are of this kind."""

    WHERE = "threshold 8: A (priority 9) gets 8 of 12 tokens, then B needs a block and A is evicted; C lacks 6"

    def served_then_evicted(self) -> tuple[UnifiedScheduler, Request, int]:
        scheduler = machine(budget=12, blocks=6, policy="priority", long_prefill_token_threshold=8)
        a = half_done(scheduler, request("A", 20, 4, priority=9), 4)
        seat(scheduler, request("B", 8, 4, made=1))
        half_done(scheduler, request("C", 7, 4, priority=1), 1)
        scheduler.batch = SchedulerOutput()
        left = attempt(self.WHERE, "running_pass(12)", YIELD, scheduler.running_pass, 12)
        return scheduler, a, left

    def test_its_tokens_go_back_to_the_budget(self):
        scheduler, _, left = self.served_then_evicted()
        cause = "R2: A will not compute its 8 tokens: add what `preempt` returns to the budget, and C has room for all 6"
        expect(self.WHERE, "batch.tokens", show(scheduler.batch.tokens), "B1 C6", cause, YIELD)
        expect(self.WHERE, "running_pass(12) returned", left, 5, cause, YIELD)

    def test_who_needed_the_blocks_gets_no_more_than_it_asked_for(self):
        options = dict(policy="priority", long_prefill_token_threshold=8)
        scheduler = machine(budget=12, blocks=4, **options)
        half_done(scheduler, request("A", 20, 4, priority=9), 4)
        half_done(scheduler, request("B", 20, 4), 4)
        where = "threshold 8: A (priority 9) gets 8 of 12 tokens; B asks for the 4 that are left, lacks a block, and A is evicted"
        left = attempt(where, "running_pass(12)", YIELD, scheduler.running_pass, 12)
        cause = "n is asked for once, before the evictions; what they give back is for those behind"
        expect(where, "batch.tokens", show(scheduler.batch.tokens), "B4", cause, YIELD)
        expect(where, "running_pass(12) returned", left, 8, cause, YIELD)

    def test_its_tokens_were_never_stored(self):
        scheduler, a, _ = self.served_then_evicted()
        cause = "of A's 12 tokens only 4 were ever stored: those of this step are not thrown away"
        expect(self.WHERE, "recomputed_tokens", (a.recomputed_tokens, scheduler.batch.thrown_away), (4, 4), cause, YIELD)

    def test_the_worker_hears_nothing_of_them(self):
        scheduler, _, _ = self.served_then_evicted()
        cause = "the message is taken back with the tokens"
        expect(self.WHERE, "batch.known", [one.id for one in scheduler.batch.known], ["B", "C"], cause, AFTER)

    def test_it_can_be_refunded_in_the_middle_of_a_run(self):
        load = [request("A", 24, 2, priority=9), request("B", 4, 6, arrival=1)]
        rows = """
            A12
            A8 B4
            B1 | A evicted
            B1
            B1
            B1
            B1 | B done
            A12
            A12
            A1 | A done"""
        cause = "R2: A gets its last 4 tokens and a block, B needs that block; A's tokens are taken back"
        options = dict(policy="priority", long_prefill_token_threshold=8, admission="full_prompt")
        scheduler = machine(blocks=7, **options)
        follow("a refund, seven blocks", scheduler, load, rows, cause, YIELD)


class TestTheWatermarkWhenNothingRuns:
    """R5: blocks are kept for those who run. With nobody running, what fits the pool joins, or nobody ever would."""

    def test_what_fits_only_the_whole_pool_joins_an_empty_machine(self):
        scheduler = machine(blocks=6, watermark=0.5, admission="full_prompt")
        rows = "A12\nA8\nA1 | A done"
        cause = "R5: A needs 5 of 6 blocks, and the watermark of 3 is kept for nobody"
        follow("watermark 3, nobody runs", scheduler, [request("A", 20, 2)], rows, cause, JOIN)

    def test_the_second_one_finds_it_kept(self):
        load = [request("A", 8, 3), request("B", 6, 2)]
        rows = "A8\nA1\nA1 | A done\nB6\nB1 | B done"
        cause = "R5: A runs, so three blocks stay free: B needs two, and 4 - 3 is 1"
        follow("watermark 3, A runs", machine(blocks=6, watermark=0.5, admission="full_prompt"), load, rows, cause, JOIN)

    def test_who_runs_takes_the_last_block(self):
        scheduler = machine(blocks=5, watermark=0.5)
        seat(scheduler, request("A", 16, 5, made=1))
        cause = "R5: the watermark is for admissions only: A, who runs, may take the last block"
        follow("watermark 3, A has four of five blocks", scheduler, [], "A1\nA1\nA1\nA1 | A done", cause, JOIN)

    def test_it_is_a_share_of_the_blocks_that_vllm_counts(self):
        got = []
        for blocks in (18, 19, 20, 39):
            scheduler = machine(blocks=blocks, watermark=0.05)
            half_done(scheduler, request("R", 4, 2), 4)
            got.append(scheduler.pool.num_free - scheduler.fit(request("A", 4, 2), [], 4)[1])
        cause = "int(watermark * num_gpu_blocks), and num_gpu_blocks counts the null block: one more than can be used"
        expect("5 % of 18, 19, 20 and 39 usable blocks, R runs", "blocks kept", got, [0, 1, 1, 2], cause, JOIN)


class TestMessages:
    """SchedulerOutput: whole for a new request, a difference for a known one."""

    def test_a_new_request_is_sent_whole_and_a_known_one_as_a_difference(self):
        scheduler = machine()
        a = request("A", 7, 4)
        scheduler.add(a)
        batch = scheduler.schedule()
        got = [tuple(one) for one in batch.new]
        expect("A joins", "batch.new", got, [("A", a.prompt, [0, 1], 0)], "id, prompt, block table, computed before", AFTER)
        scheduler.update(batch, sampled(batch))
        for blocks, computed in (([], 7), ([2], 8)):
            batch = scheduler.schedule()
            got = [tuple(one) for one in batch.known]
            cause = "only the blocks that are new in this step"
            expect(f"A decodes, {computed} computed", "batch.known", got, [("A", False, blocks, computed)], cause, AFTER)
            scheduler.update(batch, sampled(batch))

    def test_a_resumed_request_is_sent_with_its_whole_table(self):
        scheduler = machine(blocks=2)
        run = Run(scheduler, [request("A", 4, 2), request("B", 4, 3)])
        for _ in range(2):
            run.step()
        batch = run.step()
        got = [tuple(one) for one in batch.known]
        cause = "resumed is True, and `blocks` is its table, not an addition; nothing of its tokens is sent again"
        expect("B comes back", "batch.known", got, [("B", True, [*run.scheduler.running[0].blocks], 0)], cause, AFTER)

    def test_a_worker_refuses_what_it_cannot_know(self):
        batch = machine().schedule()
        batch.known.append(("A", False, [], 0))
        with pytest.raises(WorkerError, match="never seen"):
            Worker().receive(message(batch))


@dataclass(frozen=True)
class Load:
    """A random tight load: prompts that share beginnings, and limits that some requests just fit."""

    sizes: list[tuple[int, int, int, int, int]]  # shared tokens, own tokens, max_tokens, arrival, priority
    block_size: int
    spare_blocks: int
    budget: int
    seats: int
    threshold: int
    options: dict

    def requests(self) -> list[Request]:
        return [
            ask(f"R{i}", [*range(shared), *range(100 * i + 100, 100 * i + 100 + own)], tokens, arrival, priority)
            for i, (shared, own, tokens, arrival, priority) in enumerate(self.sizes)
        ]

    def machine(self, safe: bool = False, **options) -> UnifiedScheduler:
        blocks = max(-(-one.max_kv_slots // self.block_size) for one in self.requests()) + self.spare_blocks
        limits = dict(block_size=self.block_size, long_prefill_token_threshold=self.threshold, **self.options)
        return machine(self.budget, self.seats, blocks, safe, **{**limits, **options})


one_size = st.tuples(st.integers(0, 12), st.integers(1, 5), st.integers(1, 6), st.integers(0, 6), st.integers(0, 2))
loads = st.builds(
    Load,
    sizes=st.lists(one_size, min_size=2, max_size=7),
    block_size=st.integers(1, 4),
    spare_blocks=st.integers(0, 4),
    budget=st.integers(1, 16),
    seats=st.integers(1, 4),
    threshold=st.sampled_from([0, 0, 2, 5]),
    options=st.fixed_dictionaries(
        {"watermark": st.sampled_from([0.0, 0.2]), "admission": st.sampled_from(["chunk", "full_prompt"])}
    ),
)
CASES = [
    ("fcfs", False, False),
    ("fcfs", True, False),
    ("fcfs", True, True),
    ("priority", False, False),
    ("priority", True, True),
]


class TestAtRandom:
    """Run checks budget, seats, owners and, block by block, that whatever is attended to was computed. Chance does the rest."""

    @pytest.mark.parametrize("policy, caching, safe", CASES)
    @given(load=loads)
    def test_all_finish_with_the_tokens_of_a_lone_run(self, policy, caching, safe, load):
        run = run_to_end(load.machine(safe, policy=policy, prefix_caching=caching), load.requests())
        where = f"{policy}, prefix_caching={caching}, safe={safe}"
        got = (len(run.finished), run.scheduler.pool.num_free)
        cause = "each of them fits alone, so each finishes, and all blocks come back"
        expect(where, "finished, free blocks", got, (len(load.sizes), run.scheduler.pool.num_blocks), cause, SIZE)

    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    @given(load=loads, aborts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6), st.booleans()), max_size=3))
    def test_a_worker_that_sees_only_messages_knows_what_the_scheduler_knows(self, policy, load, aborts):
        scheduler, worker = load.machine(policy=policy, prefix_caching=True), Worker()
        arrivals, step = sorted(load.requests(), key=lambda one: one.arrival_ns), 0
        while arrivals or scheduler.waiting or scheduler.running:
            while arrivals and arrivals[0].arrival_ns <= step:
                scheduler.add(arrivals.pop(0))
            self.abort(scheduler, aborts, step, inside=False)
            batch = scheduler.schedule()
            tokens = worker.receive(message(batch))
            for one in scheduler.running:
                got, want = worker.requests[one.id], (one.blocks, one.num_computed_tokens)
                cause = "what changes in the scheduler must stand in the message: new blocks, a return, an end"
                where = f"step {step + 1}, {one.id} runs"
                expect(where, "the worker's table, computed", (got.blocks, got.num_computed_tokens), want, cause, AFTER)
            known = {one.id for one in scheduler.running} | {one.id for one in scheduler.waiting if one.num_preemptions}
            expect(f"step {step + 1}", "the worker knows", sorted(worker.requests), sorted(known), "finished ids", AFTER)
            self.abort(scheduler, aborts, step, inside=True)
            scheduler.update(batch, tokens)
            step += 1
            if step > 600:
                mismatch(f"step {step}", "schedule()", "no end", "everything that was accepted finishes", "", SIZE)

    @staticmethod
    def abort(scheduler: UnifiedScheduler, aborts, step: int, inside: bool) -> None:
        for at, index, when in aborts:
            if at == step and when == inside:
                scheduler.abort(f"R{index}")


class TestTheSafeMode:
    """Extension: UnifiedScheduler.name_computed."""

    def test_blocks_are_named_when_they_are_computed(self):
        scheduler = machine(prefix_caching=True, safe=True)
        a, b = ask("A", range(9)), ask("B", range(9))
        scheduler.add(a)
        batch = scheduler.schedule()
        expect("A's step has not run", "look_up(B)", scheduler.look_up(b), [], "safe: no name before the KV", HUNT)
        scheduler.update(batch, sampled(batch))
        cause = "name_blocks(request, computed tokens before the step) for each request of the batch"
        expect("A's step has run", "look_up(B)", scheduler.look_up(b), a.blocks[:2], cause, HUNT)

    def test_nothing_is_named_that_has_left(self):
        scheduler = machine(prefix_caching=True, safe=True)
        a = ask("A", range(9))
        scheduler.add(a)
        batch = scheduler.schedule()
        scheduler.abort("A")
        scheduler.update(batch, {})
        got = [name for name in scheduler.pool.names if name is not None]
        expect("A was aborted while its step ran", "names in the pool", got, [], "pass over who has a finish_reason", HUNT)
        cause = "pass over who has a finish_reason: `chain` would write down its names again, and nobody takes them out"
        expect("A was aborted while its step ran", "requests in `names`", ids(scheduler.names), [], cause, HUNT)

    def test_who_ends_with_the_step_leaves_its_blocks_cached(self):
        scheduler = machine(prefix_caching=True, safe=True)
        scheduler.add(ask("A", range(9), 1))
        batch = scheduler.schedule()
        scheduler.update(batch, sampled(batch))
        cause = "name first, then let them go: a block without a name is good for nothing"
        found = len(scheduler.look_up(ask("B", range(9))))
        expect("A ends with its first step", "blocks that B finds", found, 2, cause, HUNT)

    def test_equal_prompts_share_one_step_later(self):
        rows = "A9 B3\nA1 B6 | A done\nB1 | B done"
        cause = "safe: A's blocks are named after the step, too late for B, who has joined"
        scheduler = machine(prefix_caching=True, safe=True)
        follow("R7, safe", scheduler, [ask("A", range(9), 2), ask("B", range(9), 2)], rows, cause, HUNT)

    @staticmethod
    def hunted(safe: bool) -> Run:
        """vLLM's workload `uncomputed_hit`, in small numbers."""
        config = dict(long_prefill_token_threshold=8, prefix_caching=True, policy="priority", admission="full_prompt")
        load = [ask("L", range(64), 2, 0, 5), ask("H", range(70, 74), 7, 1, 0)]
        return Run(machine(12, blocks=17, safe=safe, **config), load)

    def test_without_it_a_hit_reads_what_nobody_wrote(self):
        with pytest.raises(AssertionError, match="never computed"):
            self.hunted(safe=False).to_end()

    def test_with_it_nobody_does(self):
        run = self.hunted(safe=True).to_end()
        expect("uncomputed_hit, safe", "finished", ids(run.finished), ["H", "L"], "both end", HUNT)


class TestLongestPrefixFirst:
    """Extension: LongestPrefixFirst.head."""

    def ordered(self, patience: float = 8) -> tuple[UnifiedScheduler, list[Request]]:
        scheduler = machine(prefix_caching=True, seats=1)
        scheduler.waiting = LongestPrefixFirst(scheduler, patience)
        remember(scheduler, range(8))
        waiting = [ask("A", range(50, 59)), ask("B", [*range(4), *range(60, 66)]), ask("C", range(9)), ask("D", range(9))]
        for one in waiting:
            scheduler.add(one)
        return scheduler, waiting

    def test_whoever_finds_most_is_next(self):
        scheduler, _ = self.ordered()
        got = [scheduler.waiting.pop().id for _ in range(4)]
        cause = "the most blocks first, of several the first in the order"
        expect("A finds 0 blocks, B 1, C and D 2", "served", got, ["C", "D", "B", "A"], cause, ORDER)

    def test_nobody_is_passed_more_often_than_patience_allows(self):
        scheduler, _ = self.ordered(patience=1)
        got = [scheduler.waiting.pop().id for _ in range(4)]
        cause = "after C has passed A and B, they are served before anybody else, in their order"
        expect("patience 1", "served", got, ["C", "A", "B", "D"], cause, ORDER)

    @given(load=loads, patience=st.integers(0, 4))
    def test_the_bound_holds_and_tokens_are_those_of_a_lone_run(self, load, patience):
        scheduler = load.machine(prefix_caching=True)
        scheduler.waiting = LongestPrefixFirst(scheduler, patience)
        run, passed = Run(scheduler, load.requests()), {}

        def count(order: list[Request], joined: list[Request]) -> None:
            for one in joined:
                for other in order[: order.index(one)]:
                    passed[other] = passed.get(other, 0) + 1
                    cause = "who has been passed `patience` times is the head, before anybody who finds more"
                    if passed[other] > patience:
                        mismatch(f"patience {patience}", f"{other.id} was passed", passed[other], "no more", cause, ORDER)
                order.remove(one)
                passed.pop(one, None)

        while run.arrivals or scheduler.waiting or scheduler.running:
            run.arrive()
            before = list(scheduler.waiting)
            batch = run.schedule()
            if not batch.preempted:
                count(before, [*batch.hits])
            run.update(batch)
            if run.now > 600:
                run.stuck(batch, 1)


@lru_cache
def recorded() -> list[tuple[str, dict]]:
    return list(read_workloads(Path(__file__).parent / "data" / "vllm" / "traces.jsonl.gz"))


RULES = {"R0": SIZE, "R1": SIZE, "R2": YIELD, "R3": YIELD, "R4": JOIN, "R4a": JOIN, "R5": JOIN, "R8": AFTER, "R9": AFTER}


class TestRecordings:
    """Every decision of vLLM 0.33.0's own scheduler on 329 workloads. More about a difference, with the reasons:
    python3 course.py run s14 --replay tests/data/vllm/traces.jsonl.gz --diff
    """

    @pytest.mark.parametrize("caching", [False, True], ids=["no cache", "cache"])
    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    @pytest.mark.parametrize("part", [1, 2])
    def test_every_decision_is_vllms(self, part, policy, caching):
        for name, workload in recorded()[part - 1 :: 2]:
            config = workload["config"]
            if (config["policy"], config["enable_prefix_caching"]) != (policy, caching):
                continue
            where = f"the recorded workload {name}"
            found = attempt(where, "its replay", YIELD, replay, workload, UnifiedScheduler)
            first = first_divergence(workload, found)
            if first is not None:
                when = "at the end" if first.step is None else f"step {first.step} (from 0)"
                cause = f"{first.rule}\nrun s14 --replay tests/data/vllm/traces.jsonl.gz --diff says more"
                see = RULES.get(first.rule.partition(" ")[0].rstrip(","), CACHE)
                mismatch(f"{where}, {when}: vLLM decided otherwise", first.what, first.ours, first.theirs, cause, see)

"""s12: two bills, three victims, KV that moves to the CPU and back. Exercise by exercise, then exact traces, then random loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.config import Config
from kit.errors import BadConfig, NoFreeBlocks
from kit.replay import replay
from kit.runner import FakeRunner
from kit.workloads import read_workloads
from s03_step_cost import A100_LLAMA3_8B, LLAMA2_7B, LLAMA3_8B, CostModel
from s08_static_batching import Batch, Engine
from s10_scheduler import FCFS, ThrashMeter
from s12_preemption import (
    PCIE4,
    VICTIM_KEYS,
    Link,
    SwappingScheduler,
    SwapRunner,
    ToTheBack,
    cheapest_to_recompute,
    fewest_outputs,
    last_admitted,
    recompute_ms,
    swap_ms,
)
from support import Run, attempt, check_conservation, expect, lone_output, mismatch, queue, request, run_to_end, seat

BILLS = "s12_preemption/Two bills"
SWAP = "s12_preemption/Swap out, swap in"
WHOM = "s12_preemption/Whom to evict"
BACK = "s12_preemption/Front or back"
THRASH = "s12_preemption/Thrash"
LEAVE = "s12_preemption/A way out of every state"
FAILS = "s12_preemption/A step that breaks"

POLICIES = ("fcfs", "shortest", "priority")


def machine(blocks: int = 5, cpu: int = 8, key=None, order: FCFS | None = None, **options) -> SwappingScheduler:
    """Budget 8, four seats, blocks of 4, no watermark, unless told otherwise."""
    limits = dict(max_num_batched_tokens=8, max_num_seqs=4, num_blocks=blocks, block_size=4, cpu_blocks=cpu, watermark=0.0)
    scheduler = SwappingScheduler(Config(**{**limits, **options}), order, key)
    scheduler.batch = Batch()
    return scheduler


def ids(requests) -> list[str]:
    return [one.id for one in requests]


class Price:
    """A step of max(10, n) ms and a tenth of a microsecond for each token of KV: ten tokens are free."""

    def step_ns(self, num_tokens: int, kv_tokens: int) -> int:
        return max(10, num_tokens) * 1_000_000 + 100 * kv_tokens


class TestRecomputeMs:
    """Exercise 1: recompute_ms."""

    def check(self, where: str, got: float, want: float, cause: str) -> None:
        expect(where, "recompute_ms()", round(got, 6), want, cause, BILLS)

    def test_alone_it_pays_for_the_whole_step(self):
        cause = (
            "with no decodes the step is run for this alone, floor and all: subtract nothing. "
            "cost.step_ns(tokens, tokens), for the step reads the KV of `tokens`"
        )
        self.check("4 tokens, no decodes, a step costs max(10, n) ms", recompute_ms(Price(), 4), 10.0004, cause)
        self.check("40 tokens, no decodes", recompute_ms(Price(), 40), 40.004, cause)

    def test_beside_decodes_only_the_difference_counts(self):
        cause = "the decodes pay for their step anyway: step_ns(decodes + tokens, tokens) - step_ns(decodes, 0)"
        self.check("40 tokens beside 8 decodes", recompute_ms(Price(), 40, 8), 38.004, cause)

    def test_below_the_knee_tokens_are_free(self):
        cause = "6 decodes and 4 tokens are still below the knee: only the KV that they read costs"
        self.check("4 tokens beside 6 decodes", recompute_ms(Price(), 4, 6), 0.0004, cause)

    def test_the_attention_term_is_added(self):
        cause = "the profile leaves out attention among the tokens themselves: add quadratic_ms"
        self.check("40 tokens beside 8, quadratic_ms 2.5", recompute_ms(Price(), 40, 8, 2.5), 40.504, cause)

    def test_a_published_profile(self):
        cost = CostModel("GPU", "model", ((1, 10.0), (100, 10.0), (200, 20.0)), 1.0, 1000)
        cause = "step_ns(n, kv) with n = decodes + tokens and kv = tokens, in nanoseconds: / 1e6"
        self.check("100 tokens beside 50 decodes, a profile that bends at 100", recompute_ms(cost, 100, 50), 5.1, cause)


class TestSwapMs:
    """Exercise 2: swap_ms."""

    LINK = Link("test", bytes_per_s=LLAMA3_8B.kv_bytes * 1000.0, copy_s=1e-3)  # a token a millisecond

    def check(self, where: str, got: float, want: float, cause: str) -> None:
        expect(where, "swap_ms()", round(got, 6), want, cause, BILLS)

    def test_out_and_back(self):
        link = Link("test", self.LINK.bytes_per_s, 0.0)
        cause = "the KV crosses the link twice, out and in; one way is half of the bill"
        self.check("16 tokens at one token a ms, copies cost nothing", swap_ms(LLAMA3_8B, 16, link), 32.0, cause)

    def test_a_part_filled_block_moves_whole(self):
        link = Link("test", self.LINK.bytes_per_s, 0.0)
        cause = "blocks move, not tokens: blocks_needed(17, 16) = 2 blocks of 16"
        self.check("17 tokens at one token a ms", swap_ms(LLAMA3_8B, 17, link), 64.0, cause)

    def test_each_block_costs_a_copy(self):
        link = Link("test", 1e30, 1e-3)
        cause = "link.copy_s for each block in each direction: 3 blocks, 6 copies"
        self.check("48 tokens, a copy costs 1 ms, bytes nothing", swap_ms(LLAMA3_8B, 48, link), 6.0, cause)

    def test_the_model_and_the_block_size_count(self):
        cause = "model.kv_bytes a token: a model with a key and a value for every head moves four times as much"
        link = Link("test", self.LINK.bytes_per_s, 0.0)
        self.check("16 tokens of a Llama-2-7B", swap_ms(LLAMA2_7B, 16, link), 128.0, cause)
        self.check(
            "16 tokens in blocks of 4", swap_ms(LLAMA3_8B, 16, self.LINK, 4), 40.0, "4 blocks of 4, 8 copies of 1 ms"
        )

    def test_the_number_in_circulation(self):
        """1.6 s to swap out a 13B model at 32K and 32 GB/s: it is out and back."""
        from s03_step_cost import Model

        llama13 = Model("Llama-2-13B", layers=40, hidden=5120, heads=40, kv_heads=40, head_dim=128, intermediate=13824)
        link = Link("32 GB/s", 32e9, 0.0)
        cause = "819,200 B a token * 32,768 tokens = 26.8 GB: 0.84 s each way"
        self.check("13B, 32,768 tokens, 32 GB/s", swap_ms(llama13, 32_768, link), 1677.7216, cause)


class TestVictimKeys:
    """Exercise 3: last_admitted, fewest_outputs, cheapest_to_recompute, and SwappingScheduler.pick_victim."""

    WHERE = "A (prompt 9, 4 outputs), B (2, 5), C (12, 4) run, admitted in this order"

    def scheduler(self, key) -> SwappingScheduler:
        scheduler = machine(30, key=key)
        seat(scheduler, request("A", 9, 9, made=4), request("B", 2, 9, made=5), request("C", 12, 9, made=4))
        return scheduler

    def picked(self, key) -> str:
        scheduler = self.scheduler(key)
        return attempt(self.WHERE, "pick_victim()", WHOM, scheduler.pick_victim).id

    def test_the_last_admitted(self):
        cause = "its key is the same for all, and among equals the one that stands last is evicted"
        expect(self.WHERE, "the last admitted", self.picked(last_admitted), "C", cause, WHOM)

    def test_the_last_admitted_is_not_the_last_that_was_added(self):
        scheduler = self.scheduler(last_admitted)
        a, b, c = scheduler.running
        scheduler.running[:] = [c, a, b]  # A was evicted once and has come back, B was in the queue for long
        a.num_preemptions = 1
        where = "added A, B, C; admitted C, A (evicted before), B"
        cause = "last by admission, the end of `running`: not by `add` (request.order)"
        expect(where, "the last admitted", scheduler.pick_victim().id, "B", cause, WHOM)
        b.num_preemptions = 2
        cause = "last by admission; how often it was evicted before has no part in it"
        expect(f"{where}; B evicted twice", "the last admitted", scheduler.pick_victim().id, "B", cause, WHOM)

    def test_outputs_are_counted_in_mid_prompt_too(self):
        half, back = request("H", 12, 9), request("R", 6, 9, made=5)
        half.num_computed_tokens, back.num_computed_tokens = 4, 2
        got = fewest_outputs(half), fewest_outputs(back)
        cause = "num_output_tokens: what is computed says nothing of outputs, nor does an eviction take them back"
        where = "H stored 4 of its prompt of 12; R, prompt 6 and 5 outputs, was evicted and has 2 computed again"
        expect(where, "fewest_outputs(H), (R)", got, (0, 5), cause, WHOM)

    def test_the_fewest_outputs(self):
        cause = "A and C have 4 outputs each, fewer than B's 5; C stands behind A. Outputs are what its user has read"
        expect(self.WHERE, "the fewest outputs", self.picked(fewest_outputs), "C", cause, WHOM)

    def test_the_cheapest_to_recompute(self):
        cause = "stored: A 12, B 6, C 15 tokens. B loses least: num_computed_tokens, not outputs and not what it knows"
        expect(self.WHERE, "the cheapest to recompute", self.picked(cheapest_to_recompute), "B", cause, WHOM)

    def test_cheapest_counts_what_is_stored(self):
        half, whole = request("H", 12, 9), request("W", 8, 9, made=1)
        half.num_computed_tokens, whole.num_computed_tokens = 4, 8
        got = cheapest_to_recompute(half) < cheapest_to_recompute(whole)
        cause = "H knows 12 tokens and has stored 4: what it has not computed can't be thrown away"
        expect("H stored 4 of 12, W 8 of 9", "H is cheaper", got, True, cause, WHOM)

    def test_among_equals_the_last_goes(self):
        scheduler = machine(30, key=lambda one: 0)
        seat(scheduler, *(request(name, 3, 9, made=1) for name in "ABC"))
        cause = "min() takes the first of several equal ones: walk through `running` from its end"
        expect("A, B and C run, all with key 0", "pick_victim()", scheduler.pick_victim().id, "C", cause, WHOM)

    def test_the_smallest_key_goes(self):
        scheduler = machine(30, key=lambda one: {"A": 1.5, "B": 0.5, "C": 1.0}[one.id])
        seat(scheduler, *(request(name, 3, 9, made=1) for name in "ABC"))
        cause = "a victim key says what is lost: the smallest goes"
        expect("keys A 1.5, B 0.5, C 1", "pick_victim()", scheduler.pick_victim().id, "B", cause, WHOM)

    def test_without_a_key_the_policy_decides(self):
        class MostBlocks(FCFS):
            def victim(self, running):
                return max(running, key=lambda one: len(one.blocks))

        scheduler = machine(30, order=MostBlocks())
        seat(scheduler, request("A", 3, 6, made=1), request("B", 20, 6, made=1), request("C", 3, 6, made=1))
        cause = "victim_key None: as in s10, self.policy.victim(self.running)"
        expect("a policy that evicts the largest, B", "pick_victim()", scheduler.pick_victim().id, "B", cause, WHOM)


class TestSwapOut:
    """Exercise 4: SwappingScheduler.swap_out."""

    WHERE = "A and B run; B has stored 9 tokens in 3 blocks of 4 and is swapped out"

    def out(self, cpu: int = 8):
        scheduler = machine(9, cpu)
        scheduler.pool.free_blocks.reverse()  # an old pool hands blocks out in any order, here 8, 7, 6, …
        a, b = request("A", 3, 6, made=1), request("B", 9, 6, made=1)
        seat(scheduler, a, b)
        table = list(b.blocks)
        scheduler.running.remove(b)  # as `preempt` does before it parks
        try:
            moved = scheduler.swap_out(b)
        except NoFreeBlocks as error:
            cause = "ask how many CPU blocks are free before you allocate: raised here, the error ends the whole engine"
            mismatch(self.WHERE, "swap_out(B) raised", f"NoFreeBlocks: {error}", "False: recompute", cause, SWAP)
        return scheduler, b, table, moved

    def test_its_gpu_blocks_come_back(self):
        scheduler, b, _, moved = self.out()
        cause = "the point of an eviction: its GPU blocks are free for others; `pool.release`"
        expect(
            self.WHERE,
            "returned, free GPU blocks, its table",
            (moved, scheduler.pool.num_free, b.blocks),
            (True, 8, []),
            cause,
            SWAP,
        )

    def test_what_it_computed_stays_computed(self):
        _, b, _, _ = self.out()
        cause = "pool.release sets num_computed_tokens to 0; the KV is on the CPU, so put the number back"
        got = (b.num_computed_tokens, b.recomputed_tokens)
        expect(self.WHERE, "num_computed_tokens, recomputed_tokens", got, (9, 0), cause, SWAP)

    def test_its_kv_lies_in_cpu_blocks(self):
        scheduler, b, _, _ = self.out()
        held = scheduler.cpu_tables.get(b)
        cause = "keep them in cpu_tables[request]: as many CPU blocks as hold computed tokens"
        got = (len(held or ()), scheduler.cpu_pool.num_free)
        expect(self.WHERE, "its CPU blocks, free ones", got, (3, 5), cause, SWAP)

    def test_every_copy_is_listed_in_the_order_of_its_table(self):
        scheduler, b, table, _ = self.out()
        cause = "(GPU block, CPU block) in the table's order, or its tokens come back in another's place"
        want = list(zip(table, scheduler.cpu_tables.get(b, ())))
        expect(self.WHERE, "blocks_to_swap_out", scheduler.batch.blocks_to_swap_out, want, cause, SWAP)
        expect(self.WHERE, "batch.swapped", ids(scheduler.batch.swapped), ["B"], "list the request in batch.swapped", SWAP)

    def test_they_are_listed_as_they_were_moved(self):
        scheduler = machine(9)
        a, b = request("A", 9, 6, made=1), request("B", 9, 6, made=1)
        seat(scheduler, a, b)
        first, second = list(b.blocks), list(a.blocks)
        scheduler.swap_out(b)
        scheduler.swap_out(a)
        batch = scheduler.batch
        cause = (
            "append to batch.swapped and to the copies: if the step breaks, they queue again in the order of the evictions"
        )
        got = (ids(batch.swapped), [gpu for gpu, _ in batch.blocks_to_swap_out])
        expect("B is swapped out, then A", "swapped, GPU blocks", got, (["B", "A"], first + second), cause, SWAP)

    def test_all_or_nothing(self):
        where = "B has stored 9 tokens in 3 blocks, and 2 CPU blocks are free"
        scheduler, b, table, moved = self.out(cpu=2)
        cause = "half of its KV is of no use: return False and change nothing, so that it is recomputed"
        got = (moved, scheduler.cpu_pool.num_free, scheduler.batch.blocks_to_swap_out, b.blocks, b.num_computed_tokens)
        expect(where, "returned, free CPU blocks, copies, table, computed", got, (False, 2, [], table, 9), cause, SWAP)

    def test_an_exact_fit_is_enough(self):
        _, _, _, moved = self.out(cpu=3)
        expect("B needs 3 CPU blocks, 3 are free", "swap_out(B)", moved, True, "False only if *fewer* are free", SWAP)

    def test_without_a_cpu_pool_nothing_moves(self):
        _, _, _, moved = self.out(cpu=0)
        expect("cpu_blocks 0", "swap_out(B)", moved, False, "cpu_pool is None: recompute", SWAP)
        with pytest.raises(BadConfig) as error:
            Config(cpu_blocks=-1)
        expect(
            "cpu_blocks -1", "the sentence", str(error.value), "cpu_blocks is -1; it must be at least 0", "kit.config", SWAP
        )

    def test_a_block_without_computed_tokens_does_not_move(self):
        scheduler = machine(9)
        b = request("B", 8, 6, made=1)
        seat(scheduler, b)
        scheduler.pool.grow(b, 1)  # the block of the token that this step would have computed
        table = list(b.blocks)
        scheduler.swap_out(b)
        cause = "blocks_needed(8, 4) = 2 blocks hold computed tokens; the third holds nothing yet"
        got = [gpu for gpu, _ in scheduler.batch.blocks_to_swap_out]
        expect("B has stored 8 tokens, and got a third block in this step", "copied", got, table[:2], cause, SWAP)
        expect("B was swapped out", "free GPU blocks", scheduler.pool.num_free, 9, "all its GPU blocks come back", SWAP)

    def test_nothing_stored_nothing_moves(self):
        scheduler, b = machine(9), request("B", 8, 6)
        queue(scheduler, b)
        got = (scheduler.swap_out(b), scheduler.cpu_tables)
        expect("B has stored nothing", "swap_out(B), cpu_tables", got, (False, {}), "there is nothing to move", SWAP)

    def test_preempt_moves_instead_of_throwing_away(self):
        scheduler = machine(9)
        b = request("B", 9, 6, made=1)
        seat(scheduler, request("A", 3, 6, made=1), b)
        scheduler.preempt(b)
        got = (scheduler.batch.thrown_away, b.num_preemptions, ids(scheduler.batch.preempted), ids(scheduler.waiting))
        cause = "s10's preempt calls `_park`, which asks swap_out first"
        expect("B is preempted", "thrown away, preemptions, preempted, waiting", got, (0, 1, ["B"], ["B"]), cause, SWAP)

    def test_once_somebody_came_in_nobody_moves_out(self):
        """Outs are copied before ins: a CPU block given up in this step must not be filled in it."""
        scheduler = machine(9)
        a, b = request("A", 3, 6, made=1), request("B", 9, 6, made=1)
        seat(scheduler, a, b)
        scheduler.preempt(a)
        scheduler.batch.swapped_in.append(request("C", 4, 4))
        scheduler.preempt(b)
        got = (ids(scheduler.batch.swapped), b.num_computed_tokens, scheduler.batch.thrown_away)
        cause = "`_park`: with somebody in batch.swapped_in, fall back to recompute"
        where = "A is swapped out, C comes in, then B is evicted, in one step"
        expect(where, "swapped, B's computed, thrown away", got, (["A"], 0, 9), cause, SWAP)


class TestSwapInPass:
    """Exercise 5: SwappingScheduler.swap_in_pass."""

    def swapped(self, blocks: int = 9, seats: int = 4, others=("A",), **options):
        """`others` run; B and C (9 tokens stored each) are on the CPU, D has never run."""
        scheduler = machine(blocks, max_num_seqs=seats, **options)
        victims = [request(name, 9, 6, made=1) for name in "BC"]
        for one in reversed(victims):  # the later of two victims stands in front
            seat(scheduler, one)
            scheduler.preempt(one)
        seat(scheduler, *(request(name, 3, 6, made=1) for name in others))
        queue(scheduler, request("D", 2, 3))
        scheduler.batch = Batch()
        return scheduler, victims

    def run(self, scheduler, budget: int = 8) -> int:
        return attempt("B and C are on the CPU", "swap_in_pass()", SWAP, scheduler.swap_in_pass, budget)

    WHERE = "A runs, B and C are swapped out, D waits; 8 GPU blocks are free"

    def test_they_return_and_compute_one_token(self):
        scheduler, _ = self.swapped()
        left = self.run(scheduler)
        cause = "their KV comes back, so each is behind by the one token it sampled last; pay it off the budget"
        got = ({one.id: n for one, n in scheduler.batch.tokens.items()}, left)
        expect(self.WHERE, "computed, budget left", got, ({"B": 1, "C": 1}, 6), cause, SWAP)

    def test_they_are_listed_as_swapped_in(self):
        scheduler, _ = self.swapped()
        self.run(scheduler)
        batch = scheduler.batch
        got = (ids(batch.swapped_in), ids(batch.resumed), ids(scheduler.running))
        cause = "call self.join, for the head of `waiting` each time: cpu_tables is in the order of the evictions"
        expect(self.WHERE, "swapped in, resumed, running", got, (["B", "C"], [], ["A", "B", "C"]), cause, SWAP)

    def test_every_copy_back_is_listed_and_the_cpu_blocks_are_free(self):
        scheduler, (b, c) = self.swapped()
        tables = [*scheduler.cpu_tables[b], *scheduler.cpu_tables[c]]
        self.run(scheduler)
        want = list(zip(tables, [*b.blocks[:3], *c.blocks[:3]]))
        cause = "`_restore` lists (CPU block, GPU block) in the table's order; join calls it"
        expect(self.WHERE, "blocks_to_swap_in", scheduler.batch.blocks_to_swap_in, want, cause, SWAP)
        got = (scheduler.cpu_pool.num_free, scheduler.cpu_tables)
        expect(self.WHERE, "free CPU blocks, cpu_tables", got, (8, {}), "they go back when the request returns", SWAP)

    def test_it_needs_blocks_for_what_is_stored_and_the_next_token(self):
        scheduler, _ = self.swapped(blocks=7, others=("A", "E", "F", "G"), seats=8)
        self.run(scheduler)
        wait = scheduler.batch.head
        got = (ids(scheduler.running), tuple(wait)[:3] if wait else None)
        cause = (
            "3 blocks are free and B needs 3 of them; C finds none: ask why_wait, keep its answer in batch.head, and stop"
        )
        expect(
            "B and C are on the CPU, 3 GPU blocks free",
            "running, why C waits",
            got,
            (["A", "E", "F", "G", "B"], ("blocks", 3, 0)),
            cause,
            SWAP,
        )

    @pytest.mark.parametrize(("rule", "seats", "budget", "why"), [("budget", 4, 1, (1, 0)), ("seats", 2, 8, (3, 2))])
    def test_whatever_is_short_ends_the_pass(self, rule, seats, budget, why):
        scheduler, _ = self.swapped(seats=seats)
        left = self.run(scheduler, budget)
        wait = scheduler.batch.head
        got = (ids(scheduler.batch.swapped_in), tuple(wait)[:3] if wait else None, left)
        cause = "any reason of why_wait ends the pass: blocks, seats or tokens"
        where = f"B and C are on the CPU, {seats} seats of which A has one, budget {budget}"
        expect(where, "swapped in, why C waits, left", got, (["B"], (rule, *why), budget - 1), cause, SWAP)

    def test_a_step_that_evicts_brings_nobody_back(self):
        scheduler, _ = self.swapped()
        scheduler.batch.preempted.append(request("X", 1, 1))
        self.run(scheduler)
        wait = scheduler.batch.head
        cause = "ask why_wait: what an eviction just freed would go to the one who comes back"
        got = (ids(scheduler.batch.swapped_in), wait and wait.rule)
        expect("this step has evicted X", "swapped in, why B waits", got, ([], "eviction"), cause, SWAP)

    def test_nobody_else_is_let_in(self):
        scheduler, _ = self.swapped()
        self.run(scheduler)
        cause = "stop when the head is not in cpu_tables: D is for the admission pass"
        expect(self.WHERE, "admitted", ids(scheduler.batch.admitted), [], cause, SWAP)

    def test_a_newcomer_waits_while_somebody_is_swapped_out(self):
        scheduler, _ = self.swapped(blocks=5, others=("A", "E", "F"), seats=8)
        left = attempt("B and C are on the CPU", "admit_pass()", SWAP, scheduler.admit_pass, 8)
        got = (ids(scheduler.batch.tokens), left)
        cause = "2 blocks are free: D would fit, B would not. Nobody joins while one of them can't return"
        expect("B and C need 3 blocks, D needs 1, 2 are free", "admit_pass() let in", got, ([], 8), cause, SWAP)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_under_every_policy_they_stand_first(self, policy):
        scheduler = machine(9, policy=policy)
        late = request("Z", 9, 6, made=1, priority=9, arrival=5)
        seat(scheduler, late)
        queue(scheduler, request("D", 1, 3, priority=0))
        scheduler.preempt(late)
        cause = "`place` puts who is in cpu_tables before everybody, whatever the policy's key"
        expect(
            f"{policy}: Z is swapped out, the more urgent and shorter D waits",
            "waiting",
            ids(scheduler.waiting),
            ["Z", "D"],
            cause,
            SWAP,
        )

    def test_half_a_prompt_comes_back_and_goes_on(self):
        scheduler = machine(9)
        b = request("B", 12, 3)
        scheduler.pool.grow(b, 6)
        b.num_computed_tokens = 6
        scheduler.running.append(b)
        scheduler.preempt(b)
        scheduler.batch = Batch()
        self.run(scheduler, 4)
        got = ({one.id: n for one, n in scheduler.batch.tokens.items()}, b.num_computed_tokens)
        cause = "it had 6 of 12 tokens stored: the next chunk follows them, as large as the budget allows"
        expect("B comes back in mid-prefill, budget 4", "computed, num_computed_tokens", got, ({"B": 4}, 10), cause, SWAP)


class TestRelease:
    """Exercise 6: SwappingScheduler.release, by way of abort. C13: in every state."""

    def state(self, name: str):
        scheduler = machine(9)
        b = request("B", 9, 6, made=1)
        if name == "waiting":
            b = request("B", 9, 6)
            queue(scheduler, b)
        elif name == "mid-prefill":
            b = request("B", 9, 6)
            queue(scheduler, b)
            scheduler.update(scheduler.schedule(), {})
        else:
            seat(scheduler, b)
            if name == "evicted":
                scheduler.cpu_pool.allocate(8)
                scheduler.preempt(b)
                scheduler.cpu_pool.free(range(8))
            elif name == "swapped out":
                scheduler.preempt(b)
        return scheduler, b

    @pytest.mark.parametrize("name", ["waiting", "mid-prefill", "decoding", "evicted", "swapped out"])
    def test_an_abort_in_any_state_gives_everything_back(self, name):
        scheduler, b = self.state(name)
        ends = "who ends need not run: it is in `running` or in `waiting`, swapped out in `waiting`"
        attempt(f"B is {name}", "abort(B)", LEAVE, scheduler.abort, "B", nobody_left=ends)
        where = f"B was aborted while {name}"
        check_conservation(scheduler, [b], where)
        got = (
            scheduler.pool.num_free,
            scheduler.cpu_pool.num_free,
            ids(scheduler.running),
            ids(scheduler.waiting),
            len(scheduler.cpu_tables),
        )
        cause = "out of the queue it is in, out of cpu_tables, GPU and CPU blocks back"
        expect(where, "free GPU and CPU blocks, running, waiting, swapped out", got, (9, 8, [], [], 0), cause, LEAVE)
        free = sorted(scheduler.pool.free_blocks), sorted(scheduler.cpu_pool.free_blocks)
        expect(where, "the free lists", free, (list(range(9)), list(range(8))), "each block once", LEAVE)

    @pytest.mark.parametrize("name", ["waiting", "decoding", "swapped out"])
    def test_a_second_abort_does_nothing(self, name):
        scheduler, _ = self.state(name)
        first, second, unknown = scheduler.abort("B"), scheduler.abort("B"), scheduler.abort("nobody")
        got = (first is not None, second, unknown, scheduler.pool.num_free, scheduler.cpu_pool.num_free)
        cause = "release is called once, for a live request; `abort` looks it up"
        expect(f"B {name}, aborted twice", "abort() and free blocks", got, (True, None, None, 9, 8), cause, LEAVE)

    def test_others_keep_what_they_hold(self):
        scheduler, _ = self.state("swapped out")
        c = request("C", 5, 6, made=1)
        seat(scheduler, c)
        scheduler.preempt(c)
        scheduler.abort("B")
        got = (ids(scheduler.waiting), len(scheduler.cpu_tables[c]), scheduler.cpu_pool.num_free)
        expect(
            "B and C are swapped out, B is aborted",
            "waiting, C's blocks, free",
            got,
            (["C"], 2, 6),
            "only its own blocks",
            LEAVE,
        )


class TestStepThatBreaks:
    """Engine.fail and SwappingScheduler.drop_copies: nobody knows which copies were made."""

    def broken(self):
        scheduler = machine(5)
        requests = [request("A", 3, 6), request("B", 4, 5), request("C", 5, 3)]

        class Breaks(FakeRunner):
            done = False

            def execute(self, batch):
                if batch.swapped and not self.done:
                    self.done = True
                    raise RuntimeError("copy failed")
                return super().execute(batch)

        engine = Engine(scheduler, Breaks(), requests)
        while not engine.report.errors:
            engine.step()
        return scheduler, requests, engine

    WHERE = "the step that swaps C out raises"

    def test_the_victim_recomputes(self):
        scheduler, (_, _, c), _ = self.broken()
        cause = "its copy may not have happened: drop it, as if it had been evicted without a CPU"
        got = (
            c.num_computed_tokens,
            c.recomputed_tokens,
            len(scheduler.cpu_tables),
            scheduler.cpu_pool.num_free,
            c.finish_reason,
        )
        expect(
            self.WHERE, "computed, recomputed, swapped out, free CPU blocks, reason", got, (0, 5, 0, 8, None), cause, FAILS
        )

    def test_the_requests_of_the_step_end_and_the_others_finish(self):
        scheduler, requests, engine = self.broken()
        check_conservation(scheduler, requests, "after the step that broke")
        engine.run(100)
        got = ([one.finish_reason for one in requests], scheduler.pool.num_free, scheduler.cpu_pool.num_free)
        cause = "A and B were being computed and end as `error`; C keeps its output, and nothing leaks"
        expect(self.WHERE, "reasons, free GPU and CPU blocks", got, (["error", "error", "length"], 5, 8), cause, FAILS)
        expect(self.WHERE, "C's output", requests[2].output, lone_output(requests[2]), cause, FAILS)

    def test_one_that_ended_meanwhile_is_left_alone(self):
        scheduler = machine(9)
        b = request("B", 9, 6, made=1)
        seat(scheduler, b)
        scheduler.preempt(b)
        scheduler.abort("B")
        scheduler.drop_copies(scheduler.batch)
        expect("B was swapped out and aborted", "waiting", ids(scheduler.waiting), [], "only who is in cpu_tables", FAILS)


class TestOneLoadBothWays:
    """The running example of s10, its victim swapped: the same tokens, one less computed five times."""

    def run(self, cpu: int) -> Run:
        sizes = (("A", 3, 6), ("B", 4, 5), ("C", 5, 3), ("D", 2, 3))
        return run_to_end(machine(5, cpu), [request(*size) for size in sizes])

    def test_swap_and_recompute_give_the_same_tokens(self):
        for cpu in (0, 1, 2, 8):
            run = self.run(cpu)
            got = [one.output for one in run.requests]
            want = [lone_output(one) for one in run.requests]
            expect(f"{cpu} CPU blocks", "outputs", got, want, "tokens never depend on the schedule", SWAP)

    def test_in_an_old_pool_the_kv_comes_back_in_its_place(self):
        scheduler = machine(5, 8)
        scheduler.pool.free_blocks.reverse()  # handed out from 4 down: C lies in 2 and 1
        scheduler.cpu_pool.free_blocks = [3, 6, 1, 7, 5, 0, 2, 4]
        sizes = (("A", 3, 6), ("B", 4, 5), ("C", 5, 3), ("D", 2, 3))
        run = run_to_end(scheduler, [request(*size) for size in sizes])
        expect("blocks in any order", "finished", len(run.finished), 4, "the pairs of a swap keep the table's order", SWAP)

    def test_a_swap_computes_nothing_again(self):
        got = [sum(one.recomputed_tokens for one in self.run(cpu).requests) for cpu in (0, 1, 2)]
        cause = "C has 5 tokens in 2 blocks: with 0 or 1 CPU blocks it recomputes them, with 2 it moves"
        expect("the running example with 0, 1 and 2 CPU blocks", "recomputed tokens", got, [5, 5, 0], cause, SWAP)

    def test_copies_take_the_time_of_the_bill(self):
        runner = SwapRunner(A100_LLAMA3_8B, LLAMA3_8B, PCIE4, 16)
        one = request("A", 4, 4)
        one.num_computed_tokens = 4
        batch, plain = Batch(), Batch()
        batch.tokens[one] = plain.tokens[one] = 4
        batch.blocks_to_swap_out, batch.blocks_to_swap_in = [(0, 0), (1, 1)], [(2, 2), (3, 3)]
        got = round((runner.execute(batch)[1] - runner.execute(plain)[1]) / 1e3)
        want = round(1e3 * swap_ms(LLAMA3_8B, 32, PCIE4, 16))
        cause = "two blocks out and two in: what SwapRunner charges is what swap_ms says"
        expect("two copies out and two in", "microseconds more", got, want, cause, BILLS)


class TestFrontOrBack:
    """ToTheBack, the policy of the experiment."""

    def test_a_victim_joins_the_end(self):
        order = []
        for order_of in (None, ToTheBack()):
            scheduler = machine(9, 0, order=order_of)
            c = request("C", 5, 3)
            scheduler.add(c)
            scheduler.schedule()
            scheduler.add(request("D", 5, 3))
            scheduler.preempt(c)
            order.append(ids(scheduler.waiting))
        cause = "FCFS: its key is the order of add, the front; ToTheBack: as if it had just arrived"
        expect("C is evicted, D waits", "waiting: FCFS, ToTheBack", order, [["C", "D"], ["D", "C"]], cause, BACK)


class TestThrash:
    """What the gate and the meter do when memory is short."""

    def evictions(self, **options) -> int:
        meter = options.pop("meter", None)
        scheduler = machine(12, 0, max_num_seqs=8, **options)
        scheduler.meter = meter
        run = run_to_end(scheduler, [request(name, 20, 6) for name in "ABCDE"])
        return sum(one.num_preemptions for one in run.requests)

    def test_the_whole_prompt_gate_evicts_less_than_the_first_chunk(self):
        got = self.evictions() > self.evictions(admission="full_prompt")
        cause = "five prompts of 5 blocks in 12: the first chunk of each fits, their prompts don't"
        expect("five prompts of 20 tokens, 12 blocks of 4", "fewer evictions", got, True, cause, THRASH)

    def test_back_pressure_ends_and_everybody_is_served(self):
        scheduler = machine(12, 0, max_num_seqs=8)
        scheduler.meter = ThrashMeter(4)
        run = run_to_end(scheduler, [request(name, 20, 6) for name in "ABCDE"])
        got = len(run.finished)
        expect("the same with a meter", "finished", got, 5, "the meter holds newcomers back, nobody for ever", THRASH)
        for name in "XYZ":
            scheduler.add(request(name, 4, 4))
        late = Run(scheduler)
        late.to_end()
        got = (scheduler.meter.thrashing, sum(one.num_preemptions for one in late.requests))
        expect(
            "then three small ones come", "thrashing, evictions", got, (False, 0), "it recovers when the load does", THRASH
        )


@dataclass(frozen=True)
class Load:
    """A tight machine and its requests: (prompt, outputs, arrival, priority) each."""

    blocks: int
    block_size: int
    budget: int
    seats: int
    cpu: int
    admission: str
    sizes: tuple[tuple[int, int, int, int], ...]

    def requests(self):
        return [request(f"R{i}", p, m, arrival=t, priority=q) for i, (p, m, t, q) in enumerate(self.sizes)]

    def machine(self, policy: str = "fcfs", key=None) -> SwappingScheduler:
        limits = dict(max_num_batched_tokens=self.budget, max_num_seqs=self.seats, num_blocks=self.blocks, watermark=0.0)
        options = dict(block_size=self.block_size, cpu_blocks=self.cpu, admission=self.admission, policy=policy)
        return SwappingScheduler(Config(**limits, **options), None, key)


@st.composite
def tight(draw) -> Load:
    size = draw(st.integers(1, 4))
    sizes = draw(
        st.lists(
            st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(0, 6), st.integers(0, 2)), min_size=2, max_size=6
        )
    )
    most = max(-(-(p + m - 1) // size) for p, m, *_ in sizes)
    blocks = most + draw(st.integers(0, most))
    seats = draw(st.integers(2, 4))
    budget = draw(st.integers(seats, 16))
    return Load(
        blocks,
        size,
        budget,
        seats,
        draw(st.integers(0, blocks)),
        draw(st.sampled_from(["chunk", "full_prompt"])),
        tuple(sizes),
    )


loads = tight()


class TestAnyLoad:
    """Random tight loads, every step checked: KV is copied block by block, written, and read back."""

    @pytest.mark.parametrize("policy", POLICIES)
    @settings(max_examples=40)
    @given(load=loads, key=st.sampled_from([None, *VICTIM_KEYS]))
    def test_everything_finishes_with_the_tokens_it_gets_alone(self, policy, load, key):
        run = run_to_end(load.machine(policy, VICTIM_KEYS.get(key)), load.requests())
        expect(policy, "finished", len(run.finished), len(load.sizes), "everything that was accepted finishes", SWAP)
        free = (run.scheduler.pool.num_free, run.scheduler.cpu_pool.num_free if run.scheduler.cpu_pool else 0)
        expect(policy, "free blocks at the end", free, (load.blocks, load.cpu), "nothing leaks", LEAVE)

    @settings(max_examples=40)
    @given(load=loads)
    def test_with_victims_at_the_back_everybody_finishes_too(self, load):
        limits = dict(max_num_batched_tokens=load.budget, max_num_seqs=load.seats, num_blocks=load.blocks, watermark=0.0)
        config = Config(**limits, block_size=load.block_size, admission=load.admission)
        run = run_to_end(SwappingScheduler(config, ToTheBack()), load.requests())
        expect("victims to the back", "finished", len(run.finished), len(load.sizes), "no livelock there either", BACK)

    @settings(max_examples=40)
    @given(load=loads, aborts=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 5)), max_size=4))
    def test_nothing_leaks_when_requests_are_aborted(self, load, aborts):
        scheduler = load.machine()

        def abort(run: Run) -> None:
            for step, index in aborts:
                if step == run.now:
                    scheduler.abort(f"R{index}")
                    check_conservation(scheduler, run.requests, f"R{index} was aborted before step {step + 1}")

        run = Run(scheduler, load.requests())
        run.to_end(abort)
        free = (scheduler.pool.num_free, scheduler.cpu_pool.num_free if scheduler.cpu_pool else 0)
        expect("after the run", "free blocks", free, (load.blocks, load.cpu), "every state has a way out", LEAVE)

    @settings(max_examples=40)
    @given(load=loads, breaks=st.integers(0, 10))
    def test_a_runner_that_fails_leaks_nothing(self, load, breaks):
        scheduler, requests = load.machine(), load.requests()

        class Breaks(FakeRunner):
            steps = -1

            def execute(self, batch):
                self.steps += 1
                if self.steps == breaks:
                    raise RuntimeError("mid-step")
                return super().execute(batch)

        report = Engine(scheduler, Breaks(), requests).run(2000)
        expect("after the run", "its end", report.end, "done", "the engine goes on", FAILS)
        check_conservation(scheduler, requests, "after the run")
        free = (scheduler.pool.num_free, scheduler.cpu_pool.num_free if scheduler.cpu_pool else 0)
        expect("after the run", "free blocks", free, (load.blocks, load.cpu), "nothing leaks", FAILS)
        for one in requests:
            if one.finish_reason != "error":
                expect(one.id, "its output", one.output, lone_output(one), "who survived has its own tokens", FAILS)


FIELD_CASES = [
    pytest.param(name, case, id=name)
    for name, case in read_workloads(Path(__file__).parent / "data" / "field_cases.json")
    if case.get("scheduler") == "s12"
]


class TestFieldCases:
    """Small inputs distilled from public bug reports against real engines: tests/data/field_cases.json."""

    @pytest.mark.parametrize("name, case", FIELD_CASES)
    def test_a_field_case_replays_with_the_right_numbers(self, name, case):
        got, want = replay(case, SwappingScheduler, "s12"), case["expect"]
        where, cause = f"field case {name}: {case['title']}", case["right"]
        for key, value in want.items():
            if key not in ("requests", "schedule"):
                expect(where, key, got.totals[key], value, cause, SWAP)
        for id, row in want["requests"].items():
            shown = {key: value for key, value in got.requests[id].items() if key in row}
            expect(f"{where}, request {id}", "its row", shown, row, cause, SWAP)

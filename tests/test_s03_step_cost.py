"""s03: what a step computes, what it moves, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from s03_step_cost import (
    A100,
    A100_LLAMA2_7B,
    A100_LLAMA3_8B,
    COSTS,
    GPU,
    H100_LLAMA2_7B,
    LLAMA2_7B,
    LLAMA3_8B,
    Chunk,
    CostModel,
    Fit,
    Model,
    fit,
    flops,
    roofline_ms,
    traffic,
    twice,
)
from support import expect

MOVES = "s03_step_cost/What a step computes and moves"
ROOF = "s03_step_cost/The roofline"
LINE = "s03_step_cost/A floor and a line"
TWICE = "s03_step_cost/What doubles a step"

# One layer, hidden 4, two query heads that share one KV head of 2, intermediate 3: 2 * 4 * 2 * (2 + 1) + 3 * 4 * 3 weights.
TINY = Model("tiny", layers=1, hidden=4, heads=2, kv_heads=1, head_dim=2, intermediate=3)
CHUNKS = st.lists(st.builds(Chunk, st.integers(1, 40), st.integers(0, 300)), min_size=1, max_size=6)


def close(value: float) -> float:
    """Rounded to 9 significant digits, so that the order of additions doesn't matter."""
    return float(f"{value:.9g}")


def show(step) -> str:
    """A step as a message shows it: equal chunks in a row are written once."""
    groups = [(len(list(same)), chunk) for chunk, same in groupby(step)]
    return ", ".join(f"{n} × {chunk}" if n > 1 else str(chunk) for n, chunk in groups) or "an empty step"


def refusal(function, *args):
    """What a call ends in: the name of its error, or `no error`."""
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__
    return "no error"


class TestFlops:
    """Exercise 1: flops(model, step)."""

    def check(self, model, step, want, cause):
        expect(f"{model.name}, {model.weights:,} weights, {show(step)}", "flops()", flops(model, step), want, cause, MOVES)

    def test_a_weight_is_one_multiplication_and_one_addition(self):
        bare = replace(TINY, name="no heads, no attention", heads=0)  # 2 * 4 * 2 * (0 + 1) + 3 * 4 * 3 = 52 weights
        self.check(bare, [Chunk(1)], 104, "a weight costs a multiplication *and* an addition: 2 * weights a token")

    def test_a_token_attends_to_itself(self):
        # 84 weights: 168, and one pair of 4 * 1 layer * 2 heads * 2 = 16
        self.check(TINY, [Chunk(1)], 168 + 16, "with nothing stored a token still attends to itself: 1 pair")

    def test_it_is_a_whole_number(self):
        got = flops(TINY, [Chunk(2, 5)])
        cause = "new * (new + 1) is always even: `// 2` keeps the count of pairs whole, `/ 2` makes a float"
        expect("two new tokens behind five", "flops() returned", type(got).__name__, "int", cause, MOVES)

    def test_a_decode_attends_to_all_that_is_stored(self):
        cause = "one new token meets 9 stored ones and itself: 10 pairs of 4 * layers * heads * head_dim each"
        self.check(TINY, [Chunk(1, 9)], 168 + 160, cause)

    def test_a_prompt_attends_to_the_half_of_a_square(self):
        cause = "token i attends to the i before it and itself: 4 * 5 / 2 = 10 pairs for 4 tokens, not 4 * 4"
        self.check(TINY, [Chunk(4)], 4 * 168 + 160, cause)

    def test_a_chunk_attends_to_what_is_stored_and_to_itself(self):
        cause = "2 new tokens behind 5 stored: 2 * 5 + 2 * 3 / 2 = 13 pairs"
        self.check(TINY, [Chunk(2, 5)], 2 * 168 + 13 * 16, cause)

    def test_requests_share_weights_and_no_attention(self):
        cause = "a request attends to its own tokens only: count the pairs of each chunk by itself"
        self.check(TINY, [Chunk(1, 9), Chunk(4)], 5 * 168 + 320, cause)

    def test_every_query_head_computes_also_where_heads_share_keys(self):
        # one token of a Llama-3-8B with 999 stored: 2 * 6,979,321,856 + 4 * 32 * 32 * 128 * 1000
        cause = "sharing keys (GQA) saves memory, not arithmetic: each of the 32 *query* heads scores every key"
        self.check(LLAMA3_8B, [Chunk(1, 999)], 13_958_643_712 + 524_288_000, cause)

    def test_an_empty_step_computes_nothing(self):
        self.check(TINY, [], 0, "no token, no operation")

    @given(CHUNKS, st.integers(1, 300))
    def test_a_prompt_in_two_chunks_costs_what_it_costs_in_one(self, step, cut):
        whole = flops(TINY, [Chunk(cut + 5), *step])
        halves = flops(TINY, [Chunk(cut), *step]) + flops(TINY, [Chunk(5, cut)])
        cause = "the second chunk attends to the first, which is stored by then: nothing is saved, nothing is added"
        expect(f"a prompt of {cut + 5}, cut after {cut}", "flops() of both chunks", halves, whole, cause, MOVES)


class TestTraffic:
    """Exercise 2: traffic(model, step)."""

    def check(self, model, step, want, cause):
        where = f"{model.name}, {model.weights:,} weights, {model.kv_bytes:,} bytes of KV a token, {show(step)}"
        expect(where, "traffic()", traffic(model, step), want, cause, MOVES)

    def test_weights_have_two_bytes_each(self):
        # 84 weights of 2 bytes; KV: key and value of 1 head of 2 numbers of 2 bytes = 8 bytes a token
        self.check(
            TINY, [Chunk(1)], 168 + 8, "a weight in bfloat16 has `BYTES` = 2 bytes, and the new token's KV is written"
        )

    def test_the_whole_batch_shares_one_reading_of_the_weights(self):
        cause = "the weights are read once a step, not once a request or token: that is the case for batching"
        self.check(TINY, [Chunk(1)] * 16, 168 + 16 * 8, cause)

    def test_a_prompt_reads_the_weights_once_too(self):
        self.check(TINY, [Chunk(100)], 168 + 800, "100 tokens share one reading of the weights, and write their KV")

    def test_what_is_stored_is_read_for_each_request(self):
        cause = "nobody shares the KV cache: 9 and 5 stored tokens are read, 1 + 1 new ones written"
        self.check(TINY, [Chunk(1, 9), Chunk(1, 5)], 168 + 16 * 8, cause)

    def test_the_kv_of_real_models(self):
        cause = "a key and a value per layer and *KV* head: 131,072 bytes a token for Llama-3-8B, 524,288 for Llama-2-7B"
        self.check(LLAMA3_8B, [Chunk(1, 999)], 13_958_643_712 + 131_072_000, cause)
        self.check(LLAMA2_7B, [Chunk(1, 999)], 12_952_010_752 + 524_288_000, cause)

    @given(CHUNKS, CHUNKS)
    def test_two_steps_in_one_save_one_reading_of_the_weights(self, one, other):
        got = traffic(TINY, one) + traffic(TINY, other) - traffic(TINY, [*one, *other])
        cause = "together they read the weights once, apart twice; the KV is the same"
        expect(f"{show(one)} and {show(other)}", "bytes saved by sharing a step", got, 168, cause, MOVES)


class TestRoofline:
    """Exercise 3: roofline_ms(gpu, num_flops, num_bytes)."""

    CHIP = GPU("chip", flops_per_s=100.0, bytes_per_s=10.0)

    def check(self, num_flops, num_bytes, want, cause):
        where = f"100 FLOP/s, 10 bytes/s; {num_flops} FLOPs, {num_bytes} bytes"
        expect(where, "roofline_ms()", close(roofline_ms(self.CHIP, num_flops, num_bytes)), float(want), cause, ROOF)

    def test_below_the_ridge_the_memory_decides(self):
        cause = "the bytes take 2 s, the arithmetic 0.5 s meanwhile: max, not a sum; and 1 s is 1,000 ms"
        self.check(50, 20, 2000, cause)

    def test_above_the_ridge_arithmetic_decides(self):
        self.check(500, 20, 5000, "the arithmetic takes 5 s, the bytes 2 s meanwhile: the slower of the two decides")

    def test_at_the_ridge_both_take_the_same(self):
        self.check(200, 20, 2000, "both take 2 s at once, so the step takes 2 s, not 4")

    def test_one_decode_on_an_a100(self):
        got = roofline_ms(A100, flops(LLAMA3_8B, [Chunk(1)]), traffic(LLAMA3_8B, [Chunk(1)]))
        cause = "13.96 GB at 2.039 TB/s"
        expect("Llama-3-8B, one decode, nothing stored", "roofline_ms()", round(got, 2), 6.85, cause, ROOF)

    @given(st.floats(1, 1e6), st.floats(1, 1e6))
    def test_no_step_is_faster_than_either_bound(self, num_flops, num_bytes):
        got = roofline_ms(self.CHIP, num_flops, num_bytes)
        want = max(num_flops / 100, num_bytes / 10) * 1e3
        cause = "the chip computes while the memory delivers: the larger of the two times"
        expect(f"{num_flops} FLOPs, {num_bytes} bytes", "roofline_ms()", close(got), close(want), cause, ROOF)


class TestKnee:
    """Exercise 4: Fit.knee()."""

    def check(self, line, want, cause):
        expect(str(line), "knee", close(line.knee()), float(want), cause, LINE)

    def test_it_is_where_the_line_meets_the_floor(self):
        cause = "base + ms_per_token * n = floor, solved for n: the base is taken off the floor first"
        self.check(Fit(floor_ms=10.0, base_ms=5.0, ms_per_token=0.05), 100, cause)

    def test_without_a_base_it_is_floor_over_slope(self):
        self.check(Fit(floor_ms=10.0, base_ms=0.0, ms_per_token=0.1), 100, "10 ms at 0.1 ms a token are 100 tokens")

    @given(st.floats(1, 50), st.floats(0, 0.9), st.floats(0.001, 1))
    def test_the_step_is_flat_before_it_and_grows_behind_it(self, floor, share, slope):
        line = Fit(floor, floor * share, slope)
        before, behind = line.step_ms(0.99 * line.knee()), line.step_ms(1.01 * line.knee())
        ok = before == floor and behind > floor
        cause = "the knee is where both parts are equal"
        got = f"{line.knee():.4f}"
        expect(str(line), "knee", got, got if ok else "flat up to it, growing behind it", cause, LINE)


class TestFit:
    """Exercise 5: fit(profile)."""

    def check(self, profile, want, cause):
        got = fit(profile)
        expect(
            f"profile {profile}", "fit() returned", type(got).__name__, "Fit", "the last line returns the best Fit", LINE
        )
        numbers = tuple(close(round(number, 6)) for number in (got.floor_ms, got.base_ms, got.ms_per_token))
        expect(f"profile {profile}", "(floor, base, slope)", numbers, want, cause, LINE)

    def test_an_exact_floor_and_an_exact_line_are_found(self):
        profile = [(1, 10.0), (20, 10.0), (50, 10.0), (200, 15.0), (400, 25.0), (800, 45.0)]
        cause = "three points are flat, the others lie on 5 + 0.05 n: try every place where the flat part may end"
        self.check(profile, (10.0, 5.0, 0.05), cause)

    def test_the_flat_part_may_be_one_point(self):
        cause = "k = 1: the first point is the floor, all others lie on 2 + 0.1 n"
        self.check([(1, 7.0), (100, 12.0), (200, 22.0), (400, 42.0)], (7.0, 2.0, 0.1), cause)

    def test_the_line_may_be_two_points(self):
        cause = "k goes on as long as two points are left for the line: range(1, len(profile) - 1)"
        self.check([(1, 8.0), (10, 8.0), (20, 8.0), (200, 12.0), (400, 22.0)], (8.0, 2.0, 0.05), cause)

    def test_the_floor_is_the_mean_of_the_flat_points(self):
        cause = "the floor is the mean of the flat points, 8.0, not the first or the lowest of them"
        self.check([(1, 7.8), (10, 8.2), (200, 14.0), (400, 26.0), (800, 50.0)], (8.0, 2.0, 0.06), cause)

    def test_the_smallest_relative_error_wins(self):
        profile = [(1, 10.0), (20, 10.5), (40, 12.0), (200, 16.0), (400, 20.0), (800, 44.0)]
        cause = "the errors are relative, over *all* points: 2 flat points are off by 8.2 % in the mean, 3 by 9.2 %"
        expect(f"profile {profile}", "floor", close(fit(profile).floor_ms), 10.25, cause, LINE)

    def test_the_published_profile_of_an_a100(self):
        got = fit(A100_LLAMA3_8B.profile)
        cause = "three flat points, and a line through the other seven"
        numbers = (round(got.floor_ms, 2), round(got.base_ms, 2), round(1e3 * got.ms_per_token, 1))
        expect(A100_LLAMA3_8B.label, "(floor ms, base ms, us a token)", numbers, (10.69, 5.44, 66.5), cause, LINE)

    def test_no_other_end_of_the_flat_part_is_better(self):
        from statistics import linear_regression, mean

        for cost in (A100_LLAMA3_8B, A100_LLAMA2_7B, H100_LLAMA2_7B):
            points, best = cost.profile, fit(cost.profile).error(cost.profile)
            for k in range(1, len(points) - 1):
                slope, base = linear_regression([n for n, _ in points[k:]], [ms for _, ms in points[k:]])
                other = Fit(mean(ms for _, ms in points[:k]), base, slope).error(points)
                text = f"{100 * best:.2f} % mean error"
                want = text if best <= other + 1e-12 else f"at most {100 * other:.2f} %, with {k} flat points"
                expect(cost.label, "fit() has", text, want, "return the one with the smallest error, not the last", LINE)

    def test_too_few_points_are_refused(self):
        got = refusal(fit, [(1, 10.0), (100, 12.0)])
        cause = (
            "a floor takes one point and a line two: check the number of points first, and raise CourseError below three"
        )
        expect("a profile of 2 points", "fit() ended in", got, "CourseError", cause, LINE)
        three = [(1, 10.0), (100, 12.0), (200, 22.0)]
        expect(f"profile {three}", "fit() ended in", refusal(fit, three), "no error", "three points are enough", LINE)

    @given(st.floats(5, 20), st.floats(0.1, 0.9), st.floats(0.01, 0.1), st.integers(2, 4))
    def test_a_profile_made_by_a_fit_is_fitted_without_error(self, floor, share, slope, flat):
        truth = Fit(floor, floor * share, slope)
        knee = floor * (1 - share) / slope
        points = [(knee * i / 5, floor) for i in range(1, flat + 1)]
        points += [(knee * i, truth.step_ms(knee * i)) for i in (2, 3, 5, 9)]
        got = f"{100 * fit(points).error(points):.6f} %"
        cause = "this profile is flat and then a line, exactly: one of the places tried gives no error at all"
        expect(f"a profile made by {truth}", "mean error of fit()", got, "0.000000 %", cause, LINE)


class TestTwice:
    """Exercise 6: twice(cost, context)."""

    LINEAR = CostModel("GPU", "model", ((1, 10.0), (101, 20.0)), 0.0, 0.0)  # 0.1 ms a token
    # 1 us for each stored token, and so small a slope beside it that every loop comes to an end
    ATTENTION = CostModel("GPU", "model", ((1, 10.0), (10_001, 20.0)), 0.0, 1000.0)

    def check(self, cost, context, want, cause):
        where = f"{cost.label}, {context:,} tokens stored for each"
        expect(where, "twice()", twice(cost, context), want, cause, TWICE)

    def test_it_is_the_first_batch_that_reaches_the_double(self):
        self.check(
            self.LINEAR, 0, 101, "one decode takes 10 ms, 100 take 19.9, 101 exactly 20: *at least* twice, the smallest"
        )

    def test_attention_counts_too(self):
        cause = (
            "a batch of n holds n * context tokens, so it takes about 10 + n ms; "
            "22 ms is twice the 11 ms of one with its context, and n = 12 is the first to reach it"
        )
        self.check(self.ATTENTION, 1000, 12, cause)

    def test_the_one_has_its_context_too(self):
        cause = "the step of one reads 5,000 stored tokens as well: 15 ms, so the double is 30 ms, not 20"
        self.check(self.ATTENTION, 5000, 4, cause)

    @pytest.mark.parametrize(("context", "want"), [(0, 257), (500, 150), (2000, 59), (8000, 18)])
    def test_an_a100_with_llama_3_8b(self, context, want):
        self.check(A100_LLAMA3_8B, context, want, "step_ns(n, n * context) against 2 * step_ns(1, context)")

    @given(st.sampled_from(COSTS), st.integers(0, 20_000))
    def test_one_less_does_not_reach_it(self, cost, context):
        n = twice(cost, context)
        one = cost.step_ns(1, context)
        before, at = cost.step_ns(n - 1, (n - 1) * context), cost.step_ns(n, n * context)
        ok = n >= 2 and before < 2 * one <= at
        cause = "the *smallest* batch: it reaches the double, and one request less does not"
        where = f"{cost.label}, {context:,} stored: one {one:,} ns, {n - 1} {before:,} ns, {n} {at:,} ns"
        expect(where, "twice()", n, n if ok else "the smallest batch that takes at least the double", cause, TWICE)

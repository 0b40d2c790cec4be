"""s17: decode attention in Triton: the pieces of the kernel one by one, then the kernel on batches made to be misread.

Compiled where there is a GPU, else in Triton's interpreter, which takes about 8 ms for a tile: the batches are small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import gpu
from kit.gpu import DEVICE, INTERPRETED, jit, tl, torch
from kit.ragged import edges, poisoned, ragged, random_batch
from s17_triton_decode import (
    MOST_SPLITS,
    absorb,
    gathered_attention,
    merge,
    paged_decode,
    slots_of,
    splits_for,
    tile_for,
    visible,
)
from support import expect, expect_attention, mismatch, returns_nothing

ORACLE = "s17_triton_decode/The oracle"
PROGRAM = "s17_triton_decode/One program"
SLOTS = "s17_triton_decode/Where the keys lie"
MASK = "s17_triton_decode/The ragged end"
ONLINE = "s17_triton_decode/A softmax that has seen others"
SPLIT = "s17_triton_decode/Split, and merge"
INF = math.inf
kernels = pytest.mark.skipif(bool(gpu.lacking()), reason=gpu.lacking() or "there is Triton")


PIECES = {
    gathered_attention: ("TestGatheredAttention", "out, [num_seqs, num_heads, head_dim]", ORACLE),
    slots_of: ("TestSlotsOf", "[TILE] slots", SLOTS),
    visible: ("TestVisible", "[TILE] of bool", MASK),
    absorb: ("TestAbsorb", "(new peak, total, acc)", ONLINE),
    merge: ("TestMerge", "[HEAD_DIM]", SPLIT),
    splits_for: ("TestSplitsFor", "a number of splits", SPLIT),
}
told = set()  # pieces that return nothing, and of which it was said


@pytest.fixture(autouse=True)
def every_piece_returns_something(request):
    """A forgotten `return` is one message, not one for each test that meets a None."""
    for piece, (tests, want, see) in PIECES.items():
        if request.cls.__name__ in (tests, "TestKernel") and (name := returns_nothing(piece)):
            if name in told:
                pytest.skip(f"{name} returns None")
            told.add(name)
            mismatch("any call", f"{name} returned", None, want, "its body has no `return` with a value", see)


def ints(*numbers: int, dtype: str = "int32"):
    return torch.tensor(numbers, dtype=getattr(torch, dtype), device=DEVICE)


def floats(numbers):
    return torch.tensor(numbers, dtype=torch.float32, device=DEVICE)


def launch(kernel, where: str, call: str, cause: str, see: str, *args, **constants) -> None:
    """Launch a probe; a read outside of its tensors is told with its cause."""
    __tracebackhide__ = True
    try:
        kernel[(1,)](*args, **constants)
    except Exception as error:
        inner: BaseException | None = error
        while inner is not None and type(inner).__name__ != "OutOfReach":
            inner = inner.__cause__
        if inner is None:
            raise
        mismatch(where, call, str(inner), "no read outside of the table", cause, see)


class TestGatheredAttention:
    """Exercise 1: the oracle. Two KV heads of size 2, blocks of 2, so that everything can be worked out by hand."""

    def caches(self):
        """Request 0 lies in blocks 3 and 1: values 1, 2, 3 of KV head 0, and 10 times as much of KV head 1; NaN elsewhere."""
        k = torch.full((4, 2, 2, 2), math.nan, dtype=torch.float32)
        v = k.clone()
        for number, (block, place) in enumerate([(3, 0), (3, 1), (1, 0)], 1):
            for head in range(2):
                k[block, place, head] = 0.0
                v[block, place, head] = number * 10**head
        return k, v

    def firsts(self, length: int, window: int = 0, heads: int = 4, k=None, q=None):
        keys, v = self.caches()
        q = torch.ones(1, heads, 2) if q is None else q
        tables = torch.tensor([[3, 1, 10**6]], dtype=torch.int32)
        lengths = torch.tensor([length], dtype=torch.int32)
        try:
            got = gathered_attention(q, keys if k is None else k, v, tables, lengths, window)
        except IndexError as error:
            where, call = f"{length} tokens in blocks of 2, block table [3, 1, 1000000]", "gathered_attention raised"
            cause = "what stands behind a request's last block means nothing: cut its row of the table to its blocks, then index"
            mismatch(where, call, f"IndexError: {error}", "no error", cause, ORACLE)
        return got, [round(float(x), 6) for x in got[0, :, 0]]

    def check(self, length, window, want, cause, heads=4, causes=None):
        """causes: what each of the wrong outputs says; `cause` is for all others."""
        __tracebackhide__ = True
        _, got = self.firsts(length, window, heads)
        cause = (causes or {}).get(tuple(got), cause)
        window_words = f", window {window}" if window else ""
        call = f"{heads} heads over 2 KV heads, {length} equal keys{window_words}"
        expect("the mean of the values, 1 2 3 and 10 20 30", call, got, want, cause, ORACLE)

    def test_equal_keys_give_the_mean_of_the_values(self):
        cause = "gather by the table, in its order, cut at the length: behind it and in other blocks there is NaN"
        turns = "query head h reads KV head h // group: heads next to each other share one (repeat_interleave, not repeat)"
        self.check(3, 0, [2.0, 2.0, 20.0, 20.0], cause, causes={(2.0, 20.0, 2.0, 20.0): turns})

    def test_query_heads_next_to_each_other_share_a_kv_head(self):
        self.check(1, 0, [1.0, 1.0, 1.0, 10.0, 10.0, 10.0], "query head h reads KV head h // group", heads=6)

    def test_a_window_holds_the_newest_tokens(self):
        self.check(3, 2, [2.5, 2.5, 25.0, 25.0], "a window of 2 is the newest token and the one before it: 2 and 3")
        longer = "a window longer than the request shows all of it: its first token is not below 0"
        self.check(3, 4, [2.0, 2.0, 20.0, 20.0], longer)
        self.check(2, 5, [1.5, 1.5, 15.0, 15.0], longer)

    def test_a_request_without_tokens_is_zeros(self):
        self.check(0, 0, [0.0] * 4, "nothing is seen: zeros, and no softmax of nothing")

    def test_scores_are_divided_by_the_root_of_the_head_size(self):
        k, _ = self.caches()
        k[3, 1] = math.log(3) / math.sqrt(
            2
        )  # q·k = 2 log 3 / sqrt 2, so after the division log 3: the second counts three times
        _, got = self.firsts(2, k=k)
        cause = "the scores are q·k / sqrt(head_dim), softmax of them over the tokens"
        expect("two tokens, the second with three times the weight", "output", got, [1.75, 1.75, 17.5, 17.5], cause, ORACLE)

    def test_it_is_computed_in_float64(self):
        got, _ = self.firsts(3)
        expect("float32 tensors", "dtype", str(got.dtype), "torch.float64", "an oracle has digits to spare", ORACLE)
        with_tiny = torch.full((1, 4, 2), 1.0 + 2**-20)
        k, _ = self.caches()
        k[3, 0], k[3, 1] = 1.0 + 2**-20, 1.0 - 2**-20
        got, _ = self.firsts(2, k=k, q=with_tiny)
        x = 2 * (1 + 2**-20) / math.sqrt(2)
        weights = [math.exp(x * 2**-20), math.exp(-x * 2**-20)]
        want = (weights[0] + 2 * weights[1]) / sum(weights)
        close = abs(float(got[0, 0, 0]) - want) < 1e-12
        cause = "convert q, k and v before the products, not the result after them"
        expect(
            "keys that differ by 2e-6",
            f"off by {abs(float(got[0, 0, 0]) - want):.0e}: within 1e-12",
            close,
            True,
            cause,
            ORACLE,
        )

    @pytest.mark.parametrize("window", [0, 9])
    def test_a_ragged_batch_agrees_with_another_oracle(self, window):
        batch = ragged(5, edges(8), block_size=8, shared=1)
        got = gathered_attention(*batch.decode, window).float()
        expect_attention("a ragged batch", f"gathered_attention, window {window}", got, batch, ORACLE, window=window)


@jit
def slots_probe(out, table, first, count, WIDTH: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """What `slots_of` says of TILE positions from `first` on, `count` of them wanted, times WIDTH."""
    lanes = tl.arange(0, TILE)
    tl.store(out + lanes, slots_of(table, first + lanes, lanes < count, BLOCK_SIZE) * WIDTH)


@kernels
class TestSlotsOf:
    """Exercise 2: slots_of(table, positions, wanted, BLOCK_SIZE)."""

    def check(self, table, first, count, size, want, cause, width=1):
        __tracebackhide__ = True
        out, blocks = ints(*[0] * 16, dtype="int64"), ints(*table)
        where = f"block table {table}, blocks of {size}, positions {first} to {first + count - 1} wanted of 16"
        call = "slots_of" + (f", times {width:,} elements a slot" if width > 1 else "")
        reads = "what is not `wanted` is not there: `mask=wanted, other=0` in the load of the table"
        launch(slots_probe, where, call, reads, SLOTS, out, blocks, first, count, WIDTH=width, TILE=16, BLOCK_SIZE=size)
        expect(where, call, out.tolist()[:count], want, cause, SLOTS)

    def test_a_tile_spans_several_blocks(self):
        want = [28, 29, 30, 31, 8, 9, 10, 11, 20, 21, 22, 23, 0, 1, 2, 3]
        cause = "entry position // BLOCK_SIZE of the table gives the block; the slot is block * BLOCK_SIZE + position % BLOCK_SIZE"
        self.check([7, 2, 5, 0], 0, 16, 4, want, cause)

    def test_a_tile_begins_anywhere(self):
        cause = "positions count from the start of the request, not of the tile"
        self.check([9, 4, 6], 13, 8, 8, [37, 38, 39, 48, 49, 50, 51, 52], cause)

    def test_the_table_is_not_read_for_what_is_not_wanted(self):
        self.check([7, 2, 5], 0, 10, 4, [28, 29, 30, 31, 8, 9, 10, 11, 20, 21], "entries 0 to 2 are all there are")

    def test_a_slot_times_its_width_does_not_fit_into_32_bits(self):
        """131,074 blocks of 16 tokens, 8 KV heads of 128: keys of 4.3 GB in 16 bits, with elements beyond 2 ** 31."""
        block, width = 131_073, 1024
        want = [(block * 16 + place) * width for place in range(4)]
        cause = "32 bits have wrapped around: make the block's number an int64 before anything is multiplied"
        self.check([block], 0, 4, 16, want, cause, width=width)

    def test_a_slot_itself_may_not_fit_into_32_bits(self):
        block = 2**31 // 16 + 5
        cause = "32 bits have wrapped around: block * BLOCK_SIZE is computed before it becomes an int64"
        self.check([block], 0, 3, 16, [block * 16, block * 16 + 1, block * 16 + 2], cause)


@jit
def visible_probe(out, first, length, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """What `visible` says of TILE positions from `first` on."""
    lanes = tl.arange(0, TILE)
    tl.store(out + lanes, visible(first + lanes, length, WINDOW).to(tl.int32))


@kernels
class TestVisible:
    """Exercise 3: visible(positions, length, WINDOW)."""

    def check(self, first, length, window, want, causes):
        """causes: by what is seen too early and too late: (at the front, behind)."""
        __tracebackhide__ = True
        out = ints(*[0] * 16)
        visible_probe[(1,)](out, first, length, WINDOW=window, TILE=16)
        got = [first + i for i, seen in enumerate(out.tolist()) if seen]
        if got == want:
            return
        both = "tiles of bool are combined with `&`; Python's `and` keeps only one of the two comparisons"
        known = {
            tuple(range(max(first, length - window), first + 16)): both,  # the second comparison alone
            tuple(p for p in range(first, first + 16) if p < length): f"a WINDOW of {window} is not heeded: {both}",
        }
        if window and tuple(got) in known:
            mismatch(
                f"a request of {length}, window {window}, positions {first} to {first + 15}",
                "visible",
                got,
                want,
                known[tuple(got)],
                MASK,
            )
        if not window and not got:
            causes = ("WINDOW 0 means all: compare with length - WINDOW only where WINDOW > 0",) * 2
        behind = [p for p in got if p >= length] or [p for p in want if p == length - 1 and p not in got]
        where = f"a request of {length}, window {window or 'off'}, positions {first} to {first + 15}"
        mismatch(where, "visible", got, want, causes[bool(behind)], MASK)

    def test_what_is_stored_is_seen_and_nothing_behind_it(self):
        causes = (
            "all positions below the length are seen",
            "the last token is at length - 1: seen are those below `length`",
        )
        self.check(0, 5, 0, [0, 1, 2, 3, 4], causes)
        self.check(16, 32, 0, list(range(16, 32)), causes)
        self.check(16, 17, 0, [16], causes)
        self.check(0, 0, 0, [], causes)

    def test_a_window_holds_the_newest_token_and_those_before_it(self):
        causes = (
            "a window of W tokens is length - W up to length - 1, the newest one among them",
            "the last token is at length - 1: seen are those below `length`",
        )
        self.check(0, 10, 4, [6, 7, 8, 9], causes)
        self.check(0, 10, 1, [9], causes)
        self.check(0, 3, 4, [0, 1, 2], causes)
        self.check(16, 20, 2, [18, 19], causes)


@jit
def absorb_probe(
    peaks, totals, accs, scores, values, TILES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Absorb TILES tiles in turn. scores: [ROWS, TILES * TILE]; values: [TILES * TILE, DIM]."""
    rows, lanes, dims = tl.arange(0, ROWS), tl.arange(0, TILE), tl.arange(0, DIM)
    peak, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for i in range(TILES):
        tile = tl.load(scores + rows[:, None] * (TILES * TILE) + i * TILE + lanes[None, :])
        v = tl.load(values + (i * TILE + lanes[:, None]) * DIM + dims[None, :])
        peak, total, acc = absorb(tile, v, peak, total, acc, P)
    tl.store(peaks + rows, peak)
    tl.store(totals + rows, total)
    tl.store(accs + rows[:, None] * DIM + dims[None, :], acc)


@contextmanager
def dots() -> Iterator[list[tuple[str, str, str]]]:
    """(input precision, types of its tiles) of each tl.dot within it. In the interpreter only, where they change hardly a digit."""
    builder = import_module("triton.runtime.interpreter").InterpreterBuilder
    original, asked = builder.create_dot, []

    def create_dot(self, a, b, d, input_precision, *rest):
        asked.append((str(input_precision).rpartition(".")[2].lower(), *(str(x.dtype.scalar) for x in (a, b))))
        return original(self, a, b, d, input_precision, *rest)

    builder.create_dot = create_dot
    try:
        yield asked
    finally:
        builder.create_dot = original


def snap(number) -> float:
    """A result to 1 / 2 ** 16, of which all wanted numbers are multiples: a GPU's exp2 may be off in the last digit."""
    return round(float(number) * 2**16) / 2**16 if math.isfinite(number) else float(number)


@kernels
class TestAbsorb:
    """Exercise 4: absorb(scores, v, peak, total, acc, PRECISION). The lesson's six numbers, two in a tile."""

    VALUES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)

    def run(self, *tiles, dtype="float32", precision="ieee"):
        """(peak, total, first of acc) after tiles of two scores each; the other fourteen places of a tile are not seen."""
        padded = [number for tile in tiles for number in (*tile, *[-INF] * 14)]
        values = [v for i in range(len(tiles)) for v in (*self.VALUES[2 * i : 2 * i + 2], *[0.0] * 14)]
        scores = floats([padded] * 16)
        v = floats(values)[:, None].expand(-1, 16).contiguous().to(getattr(torch, dtype))
        peak, total, acc = floats([0.0] * 16), floats([0.0] * 16), floats([[0.0] * 16] * 16)
        absorb_probe[(1,)](peak, total, acc, scores, v, TILES=len(tiles), ROWS=16, TILE=16, DIM=16, P=precision)
        return snap(peak[3]), snap(total[3]), snap(acc[3, 5])

    def check(self, tiles, want, causes):
        """causes: what each of the wrong (peak, total, acc) says; the last one is for all others."""
        __tracebackhide__ = True
        got = self.run(*tiles)
        if got != want:
            known = [text for wrong, text in causes.items() if wrong == got]
            general = "the new peak is the larger of the old one and the tile's; old sums shrink by 2 ** (old - new), then the tile's join"
            where = f"scores {' | '.join(' '.join(f'{x:g}' for x in tile) for tile in tiles)}"
            mismatch(where, "peak, total, acc", got, want, (known or [general])[0], ONLINE)

    def test_the_first_tile(self):
        e = math.exp(-2)
        causes = {
            (3.0, snap(1 + e), snap(10 * e + 20)): "scores are in units of log2: tl.exp2, not tl.exp",
            (3.0, 20.0, 22.5): "one sum over all 16 rows: tl.sum(weights, axis=1) has one for each",
        }
        self.check([(1, 3)], (3.0, 1.25, 22.5), causes)

    def test_each_row_has_a_peak_and_sums_of_its_own(self):
        """Even rows have scores around 200, odd rows around -200: in another row's units they are nothing, or infinite."""
        high, low = [(201, 203), (202, 205)], [(-199, -197), (-200, -201)]
        scores = floats([[x for tile in (low if row % 2 else high) for x in (*tile, *[-INF] * 14)] for row in range(16)])
        values = [v for i in range(2) for v in (*self.VALUES[2 * i : 2 * i + 2], *[0.0] * 14)]
        v = floats(values)[:, None].expand(-1, 16).contiguous()
        peak, total, acc = floats([0.0] * 16), floats([0.0] * 16), floats([[0.0] * 16] * 16)
        absorb_probe[(1,)](peak, total, acc, scores, v, TILES=2, ROWS=16, TILE=16, DIM=16, P="ieee")
        wanted = [(205.0, 1.4375, 49.375), (-197.0, 1.4375, 28.75)]
        for row in range(16):
            got, want = (snap(peak[row]), snap(total[row]), [snap(x) for x in acc[row]]), wanted[row % 2]
            if got != (*want[:2], [want[2]] * 16):
                cause = "a number a row stands beside a tile as [:, None]; without, row 0's is column 0's (base, shrink)"
                if len({snap(x) for x in peak}) == 1:
                    cause = "one peak for all 16 rows: tl.max(scores, axis=1) has one for each"
                elif len({snap(x) for x in total}) == 1 and got[1] != want[1]:
                    cause = "one sum over all 16 rows: tl.sum(weights, axis=1) has one for each"
                where = f"scores around 200 in even rows, -200 in odd ones; row {row}"
                shown = (*got[:2], got[2][0] if len(set(got[2])) == 1 else got[2])
                mismatch(where, "peak, total, acc", shown, want, cause, ONLINE)

    def test_what_was_summed_shrinks_when_the_peak_rises(self):
        causes = {
            (
                5.0,
                1.4375,
                66.25,
            ): "the accumulator is not rescaled: what was summed under the old peak shrinks by 2 ** (old - new)",
            (
                5.0,
                2.375,
                49.375,
            ): "the total is not rescaled: what was summed under the old peak shrinks by 2 ** (old - new)",
            (5.0, 2.375, 66.25): "neither total nor accumulator is rescaled when the peak rises",
        }
        self.check([(1, 3), (2, 5)], (5.0, 1.4375, 49.375), causes)

    def test_the_peak_never_falls(self):
        lower = "the peak is the largest score of all tiles so far, not of the last one"
        causes = {(4.0, 2 * 1.4375 + 1.0625, 2 * 49.375 + 53.75): lower}
        self.check([(1, 3), (2, 5), (4, 0)], (5.0, 1.96875, 76.25), causes)

    def test_a_row_that_sees_nothing_is_not_a_number_only_if_you_let_it(self):
        got = self.run((-INF, -INF), (1, 3))
        want = (3.0, 1.25, 10.0 * 0 + 30 * 0.25 + 40)
        cause = "-inf - -inf is not a number: where the new peak is -inf, subtract 0 in its place"
        expect("a tile in which a row sees nothing, then one", "peak, total, acc", got, want, cause, ONLINE)
        got = self.run((-INF, -INF))
        if got == (0.0, 0.0, 0.0):
            cause = "return the new peak as it is, -inf: the 0 in its place is for subtracting only"
        expect("nothing at all is seen", "peak, total, acc", got, (-INF, 0.0, 0.0), cause, ONLINE)

    def test_large_scores_do_not_overflow(self):
        cause = "2 ** 1003 is infinite: subtract the new peak before exp2"
        got = self.run((1001, 1003))
        expect("scores 1001 1003", "peak, total, acc", got, (1003.0, 1.25, 22.5), cause, ONLINE)

    def test_weights_take_the_type_of_the_values(self):
        try:
            got = self.run((1, 3), (2, 5), dtype="float16")
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__
            if "dtype" not in str(error):
                raise
            cause = "a dot takes two tiles of one type: weights.to(v.dtype)"
            mismatch("values in float16", "tl.dot raised", str(error), "no error", cause, ONLINE)
        cause = "weights.to(v.dtype) for the dot"
        expect("values in float16", "peak, total, acc", got, (5.0, 1.4375, 49.375), cause, ONLINE)
        if INTERPRETED:
            with dots() as asked:
                self.run((1, 3), dtype="float16")
            cause = (
                "the weights take the values' type, not the values the weights': a tensor core multiplies 16 bits faster"
            )
            expect(
                "values in float16", "tl.dot multiplies", [types for _, *types in asked], [["fp16", "fp16"]], cause, ONLINE
            )

    def test_products_are_exact_where_that_is_asked(self):
        if INTERPRETED:
            for precision in ("ieee", "tf32"):
                with dots() as asked:
                    self.run((1, 3), precision=precision)
                cause = "pass input_precision=PRECISION to tl.dot: unasked, an NVIDIA GPU multiplies float32 in TF32, with 10 bits; the interpreter never"
                got = [precision for precision, *_ in asked]
                expect(f'PRECISION "{precision}"', "tl.dot is asked for", got, [precision], cause, ONLINE)
        else:
            self.VALUES = (1 + 2**-15, *[0.0] * 5)
            expect(
                'PRECISION "ieee"',
                "acc",
                self.run((0, -INF))[2],
                1 + 2**-15,
                "pass input_precision=PRECISION to tl.dot",
                ONLINE,
            )


@jit
def merge_probe(out, parts, lse, SPLITS: tl.constexpr, DIM: tl.constexpr):
    """Merge SPLITS parts of DIM numbers."""
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
    part = tl.load(parts + splits[:, None] * DIM + dims[None, :])
    tl.store(out + dims, merge(part, tl.load(lse + splits)))


@kernels
class TestMerge:
    """Exercise 5: merge(parts, lse)."""

    def check(self, parts, lse, want, cause, causes=None):
        __tracebackhide__ = True
        out = floats([0.0] * 16)
        values = floats(parts)[:, None].expand(-1, 16).contiguous()
        merge_probe[(1,)](out, values, floats(lse), SPLITS=len(parts), DIM=16)
        got = round(float(out[7]), 4)
        cause = (causes or {}).get(got, cause)
        where = f"parts {' '.join(f'{x:g}' for x in parts)}, lse {' '.join(f'{x:g}' for x in lse)}"
        expect(where, "merge", got, want, cause, SPLIT)

    def test_a_part_counts_by_its_share_of_the_whole_sum(self):
        e = math.exp(2)
        causes = {
            15.0: "the mean of the parts: a part that has seen more counts more, by 2 ** lse",
            round((10 + 20 * e) / (1 + e), 4): "lse is in units of log2: tl.exp2, not tl.exp",
            round((10 * 0 + 20 * 2) / 2, 4): "lse is the logarithm of a sum: the shares are 2 ** lse",
            22.5: "divide by the sum of the shares",
        }
        self.check([10, 20], [0, 2], 18.0, "shares are 2 ** (lse - the largest lse), divided by their sum", causes)

    def test_a_split_without_tokens_counts_nothing(self):
        self.check([10, 0, 20, 0], [3, -INF, 3, -INF], 15.0, "its lse is -inf, so its share is 2 ** -inf = 0")

    def test_large_sums_do_not_overflow(self):
        self.check([10, 20], [300, 302], 18.0, "2 ** 300 is infinite in float32: take the largest lse out first")
        self.check([10, 20], [-302, -300], 18.0, "2 ** -300 is 0 in float32: take the largest lse out first")

    def test_without_any_token_it_is_zeros(self):
        cause = "-inf - -inf and 0 / 0 are not numbers: subtract 0 where the largest lse is -inf, divide by 1 where the total is 0"
        self.check([0, 0], [-INF, -INF], 0.0, cause)


class TestSplitsFor:
    """Exercise 6: splits_for(num_seqs, num_kv_heads, longest, tile, processors)."""

    def check(self, args, want, cause, causes=None):
        __tracebackhide__ = True
        call = "splits_for({} requests, {} KV heads, longest {}, tile {}, {} processors)".format(*args)
        got = splits_for(*args)
        expect("a step of decodes", call, got, want, (causes or {}).get(got, cause), SPLIT)

    def test_enough_requests_need_no_splits(self):
        self.check((64, 8, 32768, 64, 108), 1, "512 programs are there without splitting, 216 are wanted")
        self.check((27, 8, 32768, 64, 108), 1, "27 * 8 = 216 programs are enough: two for each of 108 processors")

    def test_a_lone_long_request_is_split(self):
        two = {16: "one program for each of 108 processors: two are wanted, 216"}
        self.check((1, 8, 64 * 64, 64, 108), 32, "8 programs, 216 wanted: 27 splits of 2 tiles, so 32", two)
        self.check((1, 8, 27 * 64, 64, 108), 27, "8 programs, 216 wanted: 27 splits; KV heads count, query heads don't")
        self.check((26, 8, 64 * 64, 64, 108), 2, "208 programs are not quite the 216 that are wanted: round up")

    def test_no_split_is_left_without_tiles(self):
        cause = "32 tiles for 27 splits: one tile each is 32 splits; two each, and eleven of 27 splits have nothing to do"
        self.check((1, 8, 2048, 64, 108), 32, cause)

    def test_a_split_has_at_least_a_tile(self):
        self.check((1, 8, 100, 64, 108), 2, "100 tokens are 2 tiles: there are no more splits than that")
        self.check((1, 1, 1, 64, 108), 1, "one token is one tile")

    def test_no_more_splits_than_one_program_can_merge(self):
        cause = "216 splits are wanted, and MOST_SPLITS // 2 = 64 asked for: 1,563 tiles, 24 each"
        self.check((1, 1, 100_000, 64, 108), 66, cause)

    def test_nobody_or_nothing_is_one_split(self):
        self.check((0, 8, 0, 64, 108), 1, "no requests, no tokens: at least 1 all the same")
        self.check((4, 8, 0, 64, 108), 1, "requests without tokens have no tiles: at least 1 all the same")

    @given(st.integers(1, 80), st.integers(1, 16), st.integers(1, 5000), st.sampled_from((16, 32, 64)), st.integers(1, 150))
    def test_for_any_step(self, num_seqs, kv_heads, longest, tile, processors):
        args = (num_seqs, kv_heads, longest, tile, processors)
        got, tiles, programs = splits_for(*args), -(-longest // tile), num_seqs * kv_heads
        where = f"{programs} programs, {tiles} tiles, {2 * processors} programs wanted"
        cause = "fewer programs than wanted, though there are tiles enough"
        enough = got * programs >= min(2 * processors, tiles * programs, MOST_SPLITS // 2 * programs)
        expect(where, f"splits {got}: enough programs", enough, True, cause, SPLIT)
        cause = "one program merges all parts of a request"
        expect(where, f"splits {got}: at most {MOST_SPLITS}", got <= MOST_SPLITS, True, cause, SPLIT)
        share = -(-tiles // got)
        expect(
            where,
            f"splits {got}, {share} tiles each: all have some",
            (got - 1) * share < tiles,
            True,
            "some split is empty",
            SPLIT,
        )
        if programs >= 2 * processors:
            expect(where, "splits", got, 1, "enough programs are there without splitting", SPLIT)


@kernels
class TestKernel:
    """All pieces together: paged_decode on batches with NaN wherever nothing may be read, and poisoned outputs."""

    def check(self, batch, see, window=0, splits=1, what=""):
        __tracebackhide__ = True
        lengths = batch.seq_lens.tolist()
        where = f"lengths {', '.join(map(str, lengths))}; blocks of {batch.block_size}" + (f"; {what}" if what else "")
        more = (f", window {window}" if window else "") + (f", {splits} splits" if splits > 1 else "")
        with poisoned():
            got = paged_decode(*batch.decode, window=window, num_splits=splits)
        tile = tile_for(batch.q)
        expect_attention(where, f"paged_decode{more}", got, batch, see, window=window, tile=tile, splits=max(splits, 1))

    @pytest.mark.parametrize("block_size", [8, 16, 32, 128, 256])
    def test_lengths_around_the_size_of_a_block(self, block_size):
        heads = 1 if block_size > 100 else 2
        self.check(ragged(block_size, edges(block_size), block_size=block_size, num_kv_heads=heads), MASK)

    @pytest.mark.parametrize("head_dim", [64, 128])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_every_type_and_head_size(self, dtype, head_dim):
        self.check(ragged(1, [5, 130], dtype=dtype, head_dim=head_dim), ONLINE, what=f"{dtype}, head size {head_dim}")

    @pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 16])
    def test_query_heads_that_share_a_kv_head(self, group):
        self.check(
            ragged(group, [5, 70], group=group, num_kv_heads=3), PROGRAM, what=f"{group} query heads share a KV head"
        )

    @pytest.mark.parametrize("splits", [2, 3, 5])
    def test_the_result_does_not_depend_on_the_splits(self, splits):
        self.check(ragged(splits, [0, 1, 64, 65, 200], group=2), SPLIT, splits=splits)

    @pytest.mark.parametrize("splits", [1, 2])
    @pytest.mark.parametrize("window", [1, 20, 64, 500])
    def test_a_sliding_window(self, window, splits):
        self.check(ragged(window, [0, 1, 21, 64, 150], group=2, num_kv_heads=1), MASK, window=window, splits=splits)

    def test_the_splits_are_chosen_where_nobody_asks(self):
        self.check(ragged(7, [150], num_kv_heads=1), SPLIT, splits=0, what="as many splits as splits_for says")

    def test_requests_share_their_first_blocks(self):
        self.check(ragged(4, [40, 33, 70], shared=2), SLOTS, what="the first two blocks are everybody's")

    def test_scores_that_rise_from_tile_to_tile(self):
        """Keys that grow along the request: in each tile the peak rises, and what was summed before hardly counts."""
        batch = ragged(6, [200], group=4, num_kv_heads=1)
        slots = batch.slots(0)
        keys = batch.k_cache.flatten(0, 1)
        keys[slots] = batch.q[0, :1] * (torch.arange(len(slots), device=DEVICE)[:, None, None] / 100)
        self.check(batch, ONLINE, what="every tile brings a new peak")

    @pytest.mark.parametrize("seed", range(5))
    def test_random_batches(self, seed):
        self.check(random_batch(seed, longest=100), PROGRAM)

    def test_nobody_at_all(self):
        got = paged_decode(*ragged(0, []).decode)
        expect("no request", "shape", list(got.shape), [0, 8, 64], "no program has to run", PROGRAM)
        self.check(ragged(0, [0, 0]), MASK, what="nobody has a token")

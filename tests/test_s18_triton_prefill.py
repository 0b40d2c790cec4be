"""s18: storing keys and values, one kernel for prefill chunks and decodes, and TinyLM in torch behind the engine."""

from __future__ import annotations

from functools import lru_cache
from random import Random

import pytest
from kit import reach
from kit.config import Config
from kit.gpu import DEVICE, INTERPRETED, jit, lacking, tl, torch
from kit.ragged import Ragged, poisoned, ragged, random_batch, reference, relative_error
from kit.request import Request
from kit.tinylm import TinyLM
from kit.torch_tinylm import TorchTinyLM
from s03_step_cost import A100_LLAMA3_8B
from s06_paged_attention import FlatBatch, PagedRunner, flatten
from s08_static_batching import Engine
from s11_chunked_prefill import ChunkedScheduler
from s14_unified_scheduler import UnifiedScheduler
from s18_triton_prefill import (
    TorchRunner,
    causal,
    keys_for,
    num_tiles,
    paged_attention,
    request_of,
    tensors_of,
    write_kv,
)
from support import expect, expect_attention, mismatch

STORE = "s18_triton_prefill/Write by slot"
WHOSE = "s18_triton_prefill/Whose tile"
KEYS = "s18_triton_prefill/Which keys"
MASK = "s18_triton_prefill/Who sees whom"
ONE = "s18_triton_prefill/One kernel"
ENGINE = "s18_triton_prefill/Behind the engine"
launches = pytest.mark.skipif(bool(lacking()), reason=f"s18 {lacking()}")
slow = pytest.mark.timeout(60)  # the interpreter, on a busy machine


def ints(*numbers: int, kind: str = "int32"):
    return torch.tensor(numbers, dtype=getattr(torch, kind), device=DEVICE)


def likely(got, mistakes: dict, otherwise: str) -> str:
    """The cause whose result is what came back."""
    return next((cause for cause, result in mistakes.items() if result == got), otherwise)


# 1. write_kernel


def written(
    slots: list[int], heads: int = 2, head_dim: int = 4, num_blocks: int = 4, block_size: int = 4, kind: str = "int32"
):
    """Store tokens 1, 2, … into the middle one of three layers; returns (k, v) of all three: what each place holds.

    Token t has the key t + head / 10, and minus that as its value; a place that nobody has written holds 0.
    """
    caches = [torch.zeros(3, num_blocks, block_size, heads, head_dim, device=DEVICE) for _ in range(2)]
    token = torch.arange(1, len(slots) + 1, device=DEVICE)[:, None, None]
    k = (token + torch.arange(heads, device=DEVICE)[None, :, None] / 10).expand(-1, -1, head_dim).contiguous()
    write_kv(caches[0][1], caches[1][1], k, -k, ints(*slots, kind=kind))
    return [cache.view(3, num_blocks * block_size, heads, head_dim) for cache in caches]


def places(cache) -> dict[int, list[float]]:
    """slot -> the numbers of its heads, for each slot of the middle layer that isn't empty."""
    rows = [[round(x, 2) for x in row] for row in cache[1].mean(-1).tolist()]
    return {slot: row for slot, row in enumerate(rows) if any(row)}


@launches
class TestWrite:
    """Exercise 1: write_kernel."""

    def test_each_token_goes_to_its_slot(self):
        slots = [9, 2, 3, 14]
        k, v = written(slots)
        want = {slot: [t, round(t + 0.1, 2)] for t, slot in enumerate(slots, 1)}
        swapped = {slot: [-x for x in row] for slot, row in want.items()}
        cause = likely(
            places(k),
            {
                "keys and values have changed places": swapped,
                "both heads of a token get its first head: a token is WIDTH = heads * head_dim numbers in a row": {
                    slot: [row[0]] * 2 for slot, row in want.items()
                },
                "only the first head is stored: a token is WIDTH = heads * head_dim numbers in a row": {
                    slot: [row[0], 0] for slot, row in want.items()
                },
                "the heads of a token have changed places": {slot: row[::-1] for slot, row in want.items()},
                "the numbers of a token's heads are mixed: WIDTH numbers, in the order in which they stand in k": {
                    slot: [round(sum(row) / 2, 2)] * 2 for slot, row in want.items()
                },
            },
            "token t begins at t * WIDTH in k and v, slot s at s * WIDTH in the caches",
        )
        got = {slot: places(k).get(slot) for slot in sorted({*places(k), *want})}
        expect("four tokens to the slots 9, 2, 3, 14", "keys by slot", got, dict(sorted(want.items())), cause, STORE)
        minus = {slot: [-x for x in row] for slot, row in want.items()}
        cause = likely(
            places(v), {"the keys are stored as values too": want}, "the values go where the keys go, in v_cache"
        )
        expect(
            "four tokens to the slots 9, 2, 3, 14", "values by slot", places(v), dict(sorted(minus.items())), cause, STORE
        )

    def test_minus_one_stores_nothing(self):
        k, v = written([5, -1, 6, -1])
        for name, cache in (("k_cache", k), ("v_cache", v)):
            before = cache[0].abs().amax((1, 2)).nonzero().flatten().tolist()
            cause = "slot -1 is one before the cache: in a pool of several layers the last slot of the layer below"
            expect("slots 5, -1, 6, -1", f"{name}: slots written in the layer below", before, [], cause, STORE)
            want = {5: 1, 6: 3}
            got = {slot: round(abs(row[0])) for slot, row in places(cache).items()}
            expect("slots 5, -1, 6, -1", f"{name}: slot -> token", got, want, "-1 skips a token, and only that", STORE)

    def test_slot_0_is_a_slot(self):
        k, _ = written([0, 1])
        got = {slot: round(row[0]) for slot, row in places(k).items()}
        expect(
            "slots 0 and 1", "slot -> token", got, {0: 1, 1: 2}, "skip what is below 0: slot 0 is the pool's first", STORE
        )

    def test_a_width_that_is_no_power_of_two_spares_its_neighbours(self):
        k, v = written([5], heads=3)
        for name, cache in (("k_cache", k), ("v_cache", v)):
            got = sorted(places(cache))
            cause = "3 heads of 4 are 12 lanes of 16: mask those behind WIDTH, or the next slot is written too"
            expect("slot 5, 3 heads of 4 numbers", f"{name}: slots written", got, [5], cause, STORE)

    def test_a_slot_far_behind_is_reached(self):
        batch = ragged(1, [20], [20], dtype="float16", num_kv_heads=2, far=True)
        k_cache, v_cache, k, v, slots = batch.to_write()
        write_kv(k_cache, v_cache, k, v, slots.int())
        got = all(bool(torch.equal(c.flatten(0, 1)[slots], n)) for c, n in ((k_cache, k), (v_cache, v)))
        cause = "slot * WIDTH is beyond 2 ** 31: make the slot int64 first"
        expect(f"a slot beyond {2**31:,} elements", "stored", got, True, cause, STORE)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_a_step_is_stored_bit_by_bit(self, dtype):
        batch = ragged(2, [7, 19, 3], [2, 8, 3], dtype=dtype, block_size=8)
        k_cache, v_cache, k, v, slots = batch.to_write()
        write_kv(k_cache, v_cache, k, v, slots)
        for name, got, want in (("k_cache", k_cache, batch.k_cache), ("v_cache", v_cache, batch.v_cache)):
            same = torch.equal(got.nan_to_num(7), want.nan_to_num(7))
            cause = "storing is copying: the same numbers, and NaN wherever nobody stores"
            expect(f"three requests, {dtype}", f"{name} is as it should be", same, True, cause, STORE)


# 2. request_of


@jit
def ask_request_of(out, query_start_loc, num_seqs, QUERIES: tl.constexpr):
    number = tl.program_id(0)
    tl.store(out + number, request_of(query_start_loc, number, num_seqs, QUERIES))


def owners(counts: list[int], queries: int) -> list[int]:
    """For each number that is launched, the request that request_of names."""
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    out = ints(*[-99] * num_tiles(starts[-1], len(counts), queries))
    ask_request_of[(len(out),)](out, ints(*starts), len(counts), QUERIES=queries)
    return out.tolist()


def owners_by_hand(counts: list[int], queries: int, beginning=lambda start, i, queries: start // queries + i) -> list[int]:
    starts = [sum(counts[:i]) for i in range(len(counts))]
    first = [beginning(start, i, queries) for i, start in enumerate(starts)]
    numbers = range(num_tiles(sum(counts), len(counts), queries))
    return [max((i for i in range(len(counts)) if first[i] <= number), default=-1) for number in numbers]


@launches
class TestRequestOf:
    """Exercise 2: request_of."""

    @pytest.mark.parametrize(
        "counts",
        [[1, 6, 3], [1, 1, 1, 1], [4, 4], [9], [5, 0, 3], [0, 0, 2]],
        ids=lambda counts: "-".join(map(str, counts)),
    )
    def test_whose_tile_a_number_is(self, counts):
        got, want = owners(counts, 4), owners_by_hand(counts, 4)
        mistakes = {
            "off by one: the search ends one behind the last beginning that is not beyond the number": [
                i + 1 for i in want
            ],
            "each request before may leave a tile part-filled: its beginning is query_start_loc[i] // QUERIES + i": (
                owners_by_hand(counts, 4, lambda start, i, queries: start // queries)
            ),
            "a number that is a beginning belongs to the request that begins: compare with <=": owners_by_hand(
                counts, 4, lambda start, i, queries: start // queries + i + 1
            ),
            "the number counts tiles, query_start_loc queries: divide by QUERIES": owners_by_hand(
                counts, 4, lambda start, i, queries: start + i
            ),
        }
        cause = likely(got, mistakes, "the last request whose beginning, query_start_loc[i] // QUERIES + i, is <= number")
        expect(f"requests of {counts} queries, 4 a tile", "request of each number", got, want, cause, WHOSE)

    def test_every_query_is_in_exactly_one_tile(self):
        random = Random(3)
        for _ in range(4):
            counts, queries = [random.randint(0, 9) for _ in range(random.randint(1, 6))], random.choice([2, 4, 8])
            starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
            rows = []
            for number, i in enumerate(owners(counts, queries)):
                first = (number - starts[i] // queries - i) * queries
                rows += range(starts[i] + first, starts[i] + min(first + queries, counts[i]))
            cause = "two requests share a number, or one is passed over: request i begins with query_start_loc[i] // QUERIES + i"
            where = f"requests of {counts} queries, {queries} a tile"
            expect(where, "rows computed", sorted(rows), list(range(starts[-1])), cause, WHOSE)


# 3. keys_for


@jit
def ask_keys_for(out, stored_before, first_query, num_queries, QUERIES: tl.constexpr, WINDOW: tl.constexpr):
    first, end = keys_for(stored_before, first_query, num_queries, QUERIES, WINDOW)
    tl.store(out, first)
    tl.store(out + 1, end)


def keys(stored: int, first: int, count: int, window: int = 0) -> list[int]:
    out = ints(-99, -99)
    ask_keys_for[(1,)](out, stored, first, count, QUERIES=4, WINDOW=window)
    return out.tolist()


@launches
class TestKeysFor:
    """Exercise 3: keys_for."""

    @pytest.mark.parametrize(
        ("stored", "first", "count", "end"),
        [(20, 0, 1, 21), (0, 0, 10, 4), (0, 8, 10, 10), (16, 4, 9, 24), (16, 8, 9, 25), (0, 0, 4, 4)],
    )
    def test_where_a_tile_ends(self, stored, first, count, end):
        got = keys(stored, first, count)
        mistakes = {
            "all of the request's tokens: keys behind the tile's last query are seen by nobody in it": [0, stored + count],
            "the tile may be part-filled: its last query is the request's last at most": [0, stored + first + 4],
            "the last query sees itself: `end` is one behind its position": [0, end - 1],
            "the chunk's queries stand behind what earlier steps have stored: add stored_before": [0, end - stored],
        }
        cause = likely(got, mistakes, "end is one behind the position of the tile's last query, first is 0")
        where = f"{stored} stored before, queries {first} up to {min(first + 4, count)} of {count}"
        expect(where, "keys_for()", got, [0, end], cause, KEYS)

    @pytest.mark.parametrize(
        ("stored", "first", "count", "begin"), [(20, 0, 1, 14), (0, 0, 10, 0), (16, 4, 9, 14), (5, 0, 3, 0)]
    )
    def test_where_a_tile_begins_under_a_window(self, stored, first, count, begin):
        got = keys(stored, first, count, window=7)
        end = stored + min(first + 4, count)
        mistakes = {
            "without a window all begin at 0; with one the first query's oldest key": [0, end],
            "the window begins with the tile's *first* query: the last one sees less far back": [
                max(0, stored + min(first + 4, count) - 7),
                end,
            ],
            "a window of 7 holds the query itself and 6 before it": [max(0, stored + first - 7), end],
            "a window may reach before the first token: at least 0": [stored + first - 6, end],
        }
        cause = likely(got, mistakes, "the first query, at stored_before + first_query, sees WINDOW - 1 before itself")
        expect(
            f"window 7, {stored} stored before, queries from {first} of {count}",
            "keys_for()",
            got,
            [begin, end],
            cause,
            KEYS,
        )


# 4. causal


@jit
def ask_causal(out, first_key, first_query, WINDOW: tl.constexpr):
    side = tl.arange(0, 8)
    seen = causal(first_key + side, first_query + side // 2, WINDOW)
    tl.store(out + side[:, None] * 8 + side[None, :], seen.to(tl.int32))


@launches
class TestCausal:
    """Exercise 4: causal."""

    @pytest.mark.parametrize("window", [0, 3])
    @pytest.mark.parametrize(("first_key", "first_query"), [(0, 0), (8, 11), (0, 9), (8, 4)])
    def test_a_query_sees_itself_and_what_is_before(self, first_key, first_query, window):
        def matrix(shift: int = 0, wide: int = 0) -> list[str]:
            pairs = [[(first_key + k, first_query + row // 2) for k in range(8)] for row in range(8)]
            return [
                "".join(".x"[k <= q + shift and (not window or k > q - window - wide)] for k, q in row) for row in pairs
            ]

        out = torch.zeros(8, 8, dtype=torch.int32, device=DEVICE)
        ask_causal[(1,)](out, first_key, first_query, WINDOW=window)
        got = ["".join(".x"[x] for x in row) for row in out.tolist()]
        mistakes = {
            "a query sees its own key too: <=, not <": matrix(shift=-1),
            "a query sees the key behind its own": matrix(shift=1),
            "the window holds the query itself: only WINDOW - 1 before it": matrix(wide=1),
            "one too few in the window: its WINDOW keys are the query's own and WINDOW - 1 before it": matrix(wide=-1),
        }
        cause = likely(got, mistakes, "compare positions, a row of keys with a column of queries")
        where = f"keys from {first_key}, queries from {first_query}, two rows each, window {window or 'none'}"
        expect(where, "causal(), a line a row", "\n".join(got), "\n".join(matrix()), cause, MASK)


# The kernel, put together


def attended(where: str, batch: Ragged, window: int = 0, see: str = ONE) -> None:
    __tracebackhide__ = True
    with poisoned():
        out = paged_attention(*batch.mixed, window)
    expect_attention(where, "paged_attention()", out, batch, see, window=window, tile=64)


@launches
@slow
class TestAttention:
    """attention_kernel is given; it is as right as its pieces."""

    def test_a_decode_is_a_request_with_one_query(self):
        attended("three decodes", ragged(1, [5, 64, 70]))

    def test_prompts_see_what_is_before_them(self):
        attended("two whole prompts", ragged(2, [21, 3], [21, 3]), see=MASK)

    def test_a_chunk_goes_on_where_the_last_one_ended(self):
        attended("a chunk of 9 behind 24 stored, a decode, a prompt of 6", ragged(3, [33, 40, 6], [9, 1, 6]), see=MASK)

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_a_chunk_over_several_tiles_of_keys(self, dtype):
        attended(f"chunks behind 120 stored, {dtype}", ragged(4, [137, 66], [17, 3], dtype=dtype, num_kv_heads=1))

    @pytest.mark.parametrize("group", [1, 3, 16])
    def test_heads_that_share_a_kv_head(self, group):
        batch = ragged(5, [18, 35], [18, 1], group=group, num_kv_heads=1 if group == 16 else 2, head_dim=32)
        attended(f"{group} query heads a KV head", batch)

    def test_requests_without_queries_or_tokens(self):
        attended("0, 4, 0 and 2 queries", ragged(6, [9, 4, 0, 17], [0, 4, 0, 2]), see=WHOSE)

    def test_a_shared_prefix(self):
        attended("two blocks of prefix for three requests", ragged(7, [39, 50, 33], [7, 1, 1], shared=2))

    def test_a_window(self):
        attended("window 9", ragged(8, [30, 80], [30, 4]), window=9, see=KEYS)

    def test_far_blocks(self):
        attended("a cache beyond 2 ** 31 elements", ragged(9, [20], [5], dtype="float16", far=True))

    @pytest.mark.parametrize("seed", range(3))
    def test_random_batches(self, seed):
        attended(f"seed {seed}", random_batch(seed, longest=90, decode=False, num_kv_heads=1))

    @pytest.mark.parametrize("cuts", [[1, 8, 7, 14], [29, 1]])
    def test_chunks_give_what_the_whole_prompt_gives(self, cuts):
        whole = ragged(10, [30], [30], block_size=8)
        k_cache, v_cache, k, v, slots = whole.to_write()
        parts, done = [], 0
        for n in cuts:
            now = slice(done, done + n)
            write_kv(k_cache, v_cache, k[now], v[now], slots[now])
            done += n
            tables = (whole.block_tables, ints(0, n), ints(done))
            parts.append(paged_attention(whole.q[now].contiguous(), k_cache, v_cache, *tables))
        cause = "a chunk's queries stand behind what is stored: seq_lens less its queries; what comes later is NaN still"
        error = relative_error(torch.cat(parts), reference(whole))
        if not error <= 3e-7:
            mismatch(f"a prompt of 30 in chunks of {cuts}", "relative error", f"{error:.1e}", "at most 3e-7", cause, MASK)

    @pytest.mark.skipif(not INTERPRETED, reason="only the interpreter tells which addresses are read")
    def test_no_tile_is_read_that_nobody_sees(self):
        batch = ragged(11, [150], [150], num_kv_heads=1, group=4, head_dim=32)
        first, row = batch.k_cache.data_ptr(), 32 * 4
        behind = first + batch.k_cache.numel() * 4
        order = {slot: position for position, slot in enumerate(batch.slots(0).tolist())}
        read: dict[int, int] = {}  # number of the tile of queries -> keys read

        def note(program, kind, addresses):
            if kind == "load" and first <= addresses[0] < behind:
                slots = {(int(a) - first) // row for a in addresses}
                read[program[0]] = max(read.get(program[0], 0), max(order.get(s, 999) for s in slots) + 1)

        with reach.observed(note):
            paged_attention(*batch.mixed)
        cause = "keys behind the tile's last query are seen by nobody in it: half of a long prompt's reading would be for nothing"
        want = {number: min(8 * number + 8, 150) for number in range(19)}
        expect("a prompt of 150, 8 queries a tile", "keys read by each program", read, want, cause, KEYS)


# 5. tensors_of


class Step:
    """A batch: request -> number of tokens, in order, as a scheduler leaves it: `num_computed_tokens` is moved already."""

    def __init__(self, *parts: tuple[Request, int]):
        self.tokens = dict(parts)


def known(id: str, prompt: int, *, made: int = 0, computed: int, blocks: tuple[int, ...]) -> Request:
    """A request that has computed so much of what it knows."""
    first = {"A": 100, "B": 200, "C": 300}.get(id, 400)
    request = Request(id, list(range(first, first + prompt)), 20)
    request.output = [first + 50 + i for i in range(made)]
    request.num_tokens = prompt + made
    request.num_computed_tokens, request.blocks = computed, list(blocks)
    return request


def mixed() -> Step:
    a = known("A", 4, made=2, computed=6, blocks=(5, 1))
    b = known("B", 3, computed=3, blocks=(8, 2, 6))
    c = known("C", 7, computed=5, blocks=(9, 7))
    return Step((a, 1), (c, 2), (b, 3))


class TestTensorsOf:
    """Exercise 5: tensors_of."""

    WHERE = "A 1 token, C 2 of 7, B 3 of 3; blocks of 4"

    def test_six_lists_become_six_tensors(self):
        flat = flatten(mixed(), 4)
        got = tensors_of(flat)
        for name in ("tokens", "positions", "slot_mapping", "query_start_loc", "seq_lens"):
            cause = "the numbers are those of the FlatBatch, in its order"
            expect(self.WHERE, name, getattr(got, name).tolist(), getattr(flat, name), cause, ENGINE)

    def test_dtypes_are_what_the_kernels_take(self):
        got = tensors_of(flatten(mixed(), 4))
        kinds = {name: str(getattr(got, name).dtype).removeprefix("torch.") for name in got.__slots__}
        want = {name: "int64" for name in ("tokens", "positions", "slot_mapping")}
        want |= {name: "int32" for name in ("query_start_loc", "seq_lens", "block_tables")}
        expect(self.WHERE, "dtypes", kinds, want, "ids and slots in 64 bits, what `check` looks at in 32", ENGINE)

    def test_short_tables_are_filled_up(self):
        flat = FlatBatch([7, 7], [0, 4], [20, 36], [0, 1, 2], [1, 5], [[5], [9, 0, 9]])
        where = "tables [5] and [9, 0, 9]"
        kept = [list(row) for row in flat.block_tables]
        try:
            tables = tensors_of(flat).block_tables.tolist()
        except ValueError as error:
            mismatch(
                where,
                "tensors_of() raised",
                f"ValueError: {error}",
                "no error",
                "fill up the short tables: a tensor is a rectangle",
                ENGINE,
            )
        cause = "fill up copies: these lists are the scheduler's own, and it would take the zeros for blocks (`+=` changes a list)"
        expect(where, "flat.block_tables afterwards", flat.block_tables, kept, cause, ENGINE)
        cause = "one rectangle, as wide as the longest"
        expect(where, "their lengths", [len(row) for row in tables], [3, 3], cause, ENGINE)
        cause = "a table's own blocks come first, in their order: entry p // block_size is that of position p"
        expect(where, "their own entries", [tables[0][:1], tables[1]], [[5], [9, 0, 9]], cause, ENGINE)

    def test_no_column_more_than_the_longest_table_has(self):
        flat = flatten(Step((known("A", 3, computed=3, blocks=(4,)), 3)), 4)
        got = tensors_of(flat).block_tables.tolist()
        expect("one request with one block", "block_tables", got, [[4]], "as wide as the longest table, no wider", ENGINE)


# 6. TorchRunner.execute


class Asked:
    """A model that notes what it is asked for. Row i of its scores says token 10 + i."""

    def __init__(self):
        self.config, self.dtype = torch_model().config, torch.float32
        self.calls: list = []

    def forward(self, tokens, positions, attention, rows=None):
        self.calls.append((tokens.tolist(), positions.tolist(), attention.args[0]))
        scores = torch.zeros(len(tokens), 50, device=DEVICE)
        scores[range(len(tokens)), range(10, 10 + len(tokens))] = 1
        return scores if rows is None else scores[list(rows)]


@lru_cache
def numpy_model() -> TinyLM:
    return TinyLM.load(dtype="float64")


@lru_cache
def torch_model() -> TorchTinyLM:
    return TorchTinyLM.load()


class TestExecute:
    """Exercise 6: TorchRunner.execute(batch)."""

    WHERE = "A 1 token, C 2 of 7, B 3 of 3; row i says 10 + i"

    def executed(self):
        """(the tokens of a mixed step, its nanoseconds, the model's notes)."""
        __tracebackhide__ = True
        runner = TorchRunner(Asked(), 10, 4)
        try:
            tokens, ns = runner.execute(mixed())
        except IndexError as error:
            cause = "rows count from 0: the last token of request i is row query_start_loc[i + 1] - 1"
            mismatch(self.WHERE, "execute() raised", f"IndexError: {error}", "no error", cause, ENGINE)
        return dict(tokens), ns, runner.model.calls

    def test_who_has_caught_up_samples_from_its_last_row(self):
        tokens, _, _ = self.executed()
        mistakes = {
            "C has computed 5 of 7 tokens: what follows is known, and no token is sampled": {
                "A": [10],
                "C": [12],
                "B": [15],
            },
            "B's last token is row 5 of the step, not its first": {"A": [10], "B": [13]},
            "a list for each, with its one new token": {"A": 10, "B": 15},
        }
        cause = likely(tokens, mistakes, "A and B have caught up; their last tokens are the rows 0 and 5")
        expect(self.WHERE, "execute()", tokens, {"A": [10], "B": [15]}, cause, ENGINE)

    def test_a_token_is_a_plain_int(self):
        tokens, _, _ = self.executed()
        kinds = {type(token).__name__ for token in tokens["A"]}
        cause = "a tensor of one number would go into the request's output: .tolist() brings plain ints"
        expect(self.WHERE, "a token is", kinds, {"int"}, cause, ENGINE)

    def test_all_go_through_the_model_in_one_pass(self):
        _, _, calls = self.executed()
        got = [call[:2] for call in calls]
        want = [([151, 303, 304, 200, 201, 202], [5, 3, 4, 0, 1, 2])]
        cause = "one forward for the whole batch, with the flat batch's tokens and positions"
        expect(self.WHERE, "forward() got", got, want, cause, ENGINE)
        got_lens = calls[0][2].seq_lens.tolist()
        cause = "attention is partial(self.attention, step), step the tensors of the flat batch"
        expect(self.WHERE, "attention knows seq_lens", got_lens, [6, 5, 3], cause, ENGINE)

    def test_the_time_is_the_cost_models(self):
        _, ns, _ = self.executed()
        cause = "step_ns(6 tokens computed, 6 + 5 + 3 tokens held): the sum of seq_lens"
        expect(self.WHERE, "nanoseconds", ns, A100_LLAMA3_8B.step_ns(6, 14), cause, ENGINE)

    def test_a_step_of_pieces_only_samples_nothing(self):
        tokens, _ = TorchRunner(Asked(), 10, 4).execute(Step((known("C", 7, computed=5, blocks=(0, 7)), 5)))
        expect("5 of 7 tokens", "execute()", dict(tokens), {}, "it computes and stores, and nobody has caught up", ENGINE)

    def test_who_computes_its_own_output_again_samples_nothing(self):
        back = known("C", 5, made=3, computed=6, blocks=(0, 7))  # evicted once: its outputs are known, and not all stored
        tokens, _ = TorchRunner(Asked(), 10, 4).execute(Step((back, 3)))
        cause = "its prompt is done and its own output is not: who has caught up is `num_computed_tokens == num_tokens`"
        expect("a prompt of 5, 3 outputs, 6 of 8 computed", "execute()", dict(tokens), {}, cause, ENGINE)


# The engine's own batches

PROMPTS = (
    "Once upon a time there was a young squirrel",
    "Once upon a time there was a curious fox",
    "The fox said to the bear",
)
NEW = 4


def told(scheduler, runner, which) -> tuple[list[list[int]], str]:
    """The tokens of some of the prompts, and what the engine says of itself."""
    requests = [Request(f"r{i}", numpy_model().encode(PROMPTS[i]), NEW, i * 20_000_000) for i in which]
    report = Engine(scheduler, runner, requests).run(max_steps=200)
    return [request.output for request in requests], "; ".join(report.errors) or "no error"


def chunked(**limits) -> ChunkedScheduler:
    return ChunkedScheduler(
        Config(**{"max_num_batched_tokens": 8, "max_num_seqs": 3, "num_blocks": 30, "block_size": 4, **limits})
    )


def unified(**limits) -> UnifiedScheduler:
    options = {"max_num_batched_tokens": 8, "max_num_seqs": 3, "num_blocks": 30, "block_size": 4, "prefix_caching": True}
    return UnifiedScheduler(Config(**{**options, **limits}), safe=True)


@launches
@slow
class TestEngine:
    """TinyLM in torch, behind the schedulers of s11 and s14, makes the text of TinyLM in NumPy."""

    def same(self, where: str, make, *which: int) -> None:
        __tracebackhide__ = True
        blocks = make().config.num_blocks
        want, _ = told(make(), PagedRunner(numpy_model(), blocks, 4), which)
        got, errors = told(make(), TorchRunner(torch_model(), blocks, 4), which)
        expect(where, "the engine says", errors, "no error", "a step of the runner raised", ENGINE)
        for i, one, other in zip(which, got, want):
            if one != other:
                texts = [repr(numpy_model().decode(tokens)) for tokens in (one, other)]
                cause = "greedy text never depends on who computes it: stores, positions, mask, rows"
                mismatch(f"{where}, request {i}", "TinyLM in torch says", *texts, cause, ENGINE)

    def test_chunks_beside_decodes_make_numpys_text(self):
        self.same("s11, budget 8", chunked, 0, 2)

    def test_prefix_hits_make_numpys_text(self):
        self.same("s14 with prefix caching, budget 8", unified, 0, 1)

    def test_evictions_make_numpys_text(self):
        self.same("s14, five blocks for two requests", lambda: unified(num_blocks=5), 1, 2)

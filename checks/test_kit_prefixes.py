"""kit.prefixes: the generated conversations are what they say, a Mooncake trace is read, and its published hit rates come out."""

from __future__ import annotations

import json
from collections import OrderedDict

import pytest
from kit.errors import BadTrace
from kit.prefixes import MOONCAKE, MOONCAKE_BLOCK, chats, enough, hit_rate, prompts_of, read_mooncake
from kit.traces import find_trace
from s07_prefix_cache import PrefixPool, hash_chain, serve

PUBLISHED = {1_000: 4.5, 3_000: 6.5, 10_000: 21.2, 30_000: 32.6, 50_000: 35.5, None: 36.6}  # % of blocks, plain LRU
GOOD = '{"input_length": 5, "hash_ids": [1]}\n'


def test_conversations_are_the_same_for_the_same_seed():
    assert chats(5, seed=1) == chats(5, seed=1) != chats(5, seed=2)


def test_a_turn_begins_with_all_that_was_said_before():
    prompts = sorted(chats(1, seed=7), key=len)
    assert len(prompts) > 1
    assert all(longer[: len(shorter)] == shorter for shorter, longer in zip(prompts, prompts[1:]))


def test_a_row_is_read_and_a_part_filled_block_has_no_name(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps({"input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 9]}) + "\n\n", "utf-8")
    (prompt,) = read_mooncake(file)
    assert (list(prompt.hashes), prompt.num_tokens) == ([0, 7], 1100)


@pytest.mark.parametrize(
    "line",
    [
        *("[]", "{", "null", '{"input_length": 5}', '{"input_length": 0, "hash_ids": [1]}'),
        *('{"input_length": 513, "hash_ids": [1]}', '{"input_length": 5, "hash_ids": ["x"]}', "[" * 5000),
    ],
)
def test_a_bad_row_is_named(tmp_path, line):
    file = tmp_path / "trace.jsonl"
    file.write_text(GOOD + line, "utf-8")
    with pytest.raises(BadTrace, match="line 2"):
        read_mooncake(file)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path, content):
    file = tmp_path / "trace.jsonl"
    file.write_bytes(content)
    with pytest.raises(BadTrace, match="trace"):
        read_mooncake(file)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(BadTrace, match=r"no\.jsonl"):
        read_mooncake(tmp_path / "no.jsonl")


def test_a_pool_without_end_hits_what_common_beginnings_allow():
    """Counted without a pool: a block is a hit if its name was there before, and if a token is left to compute."""
    prompts, seen, hits = prompts_of(chats(20), hash_chain), set(), 0
    for prompt in prompts:
        known = [name in seen for name in prompt.hashes[: (prompt.num_tokens - 1) // 16]]
        hits += known.index(False) if False in known else len(known)
        seen |= set(prompt.hashes)
    rate, _ = hit_rate(PrefixPool(enough(prompts, 16)), prompts, serve)
    assert rate == pytest.approx(100 * hits / enough(prompts, 16))


def plain_lru(prompts, blocks):
    """The published way to count: every block id by itself, a part-filled one too."""
    cache, hits, total = OrderedDict(), 0, 0
    for ids in prompts:
        total += len(ids)
        for name in ids:
            hits += name in cache
            cache[name] = None
            cache.move_to_end(name)
            if blocks and len(cache) > blocks:
                cache.popitem(last=False)
    return 100 * hits / total


def test_the_published_hit_rates_of_the_mooncake_trace():
    path, why = find_trace(MOONCAKE)
    if path is None:
        pytest.skip(f"{MOONCAKE} is not there: {why.partition(';')[0]}")
    prompts = read_mooncake(path)
    ids = [json.loads(line)["hash_ids"] for line in path.read_text("utf-8").splitlines()]
    for blocks, published in PUBLISHED.items():
        rate, _ = hit_rate(PrefixPool(blocks or enough(prompts, MOONCAKE_BLOCK), MOONCAKE_BLOCK), prompts, serve)
        assert plain_lru(ids, blocks) == pytest.approx(published, abs=0.1), blocks
        assert published - 0.05 <= rate <= published + 0.5, (
            "part-filled blocks leave the pool first, so it hits a little more"
        )

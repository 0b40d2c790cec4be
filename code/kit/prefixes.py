"""What s07 shows when it runs: shared prompts, a pool that remembers them, and three ways in which sharing goes wrong."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from kit import options, traces
from kit.errors import BadTrace
from kit.report import heading, table
from kit.request import MOST_TOKENS

MOONCAKE = "mooncake_conversation_trace.jsonl"
MOONCAKE_BLOCK = 512  # tokens; each of the trace's hash_ids stands for so many
MOONCAKE_POOLS = (1_000, 3_000, 10_000, 30_000, 50_000)
POOLS = (250, 500, 1_000, 2_000, 4_000, 8_000)
BLOCK = 16
VICTIM = tuple(range(1, 17))  # a block's token ids
TWIN = (98771, 113681, 38565, 116560, 12788, 103609, 114410)  # in place of its first seven: the notebook finds such a twin


@dataclass(frozen=True)
class Prompt:
    """What a pool has to know of one request: the names of its full blocks, and how long it is in tokens."""

    hashes: Sequence[Any]
    num_tokens: int


def chats(n: int = 150, seed: int = 7, turns: int = 8) -> list[list[int]]:
    """The prompts of n conversations of 1 to `turns` turns, in the order in which they arrive, as token ids.

    Each begins with one of four system prompts of 600 tokens. A turn's prompt is all that was said before it and 20 to 200
    new tokens of the user's; answers have 50 to 400. Conversations begin 5 s apart on average and a user thinks for 60 s on
    average. These numbers follow no service's statistics: they are chosen so that 250 to 8,000 blocks make a difference.
    """
    rng = Random(seed)

    def words(count: int) -> list[int]:
        return [traces.whole(rng, 0, 127_999) for _ in range(count)]

    systems = [words(600) for _ in range(4)]
    arrivals: list[tuple[float, int, list[int]]] = []
    start = 0.0
    for _ in range(n):
        start += traces.exponential(rng, 5)
        now, said = start, list(systems[traces.whole(rng, 0, 3)])
        for _ in range(traces.whole(rng, 1, turns)):
            said = said + words(traces.whole(rng, 20, 200))
            arrivals.append((now, len(arrivals), said))
            said = said + words(traces.whole(rng, 50, 400))
            now += traces.exponential(rng, 60)
    return [prompt for _, _, prompt in sorted(arrivals)]


def prompts_of(tokens: Sequence[Sequence[int]], hash_chain: Callable, block_size: int = BLOCK) -> list[Prompt]:
    return [Prompt(hash_chain(prompt, block_size), len(prompt)) for prompt in tokens]


def read_mooncake(path: str | Path) -> list[Prompt]:
    """Prompts of a Mooncake trace: JSON lines with `input_length` and `hash_ids`, an id for each 512 tokens.

    Equal ids mean equal prefixes, so an id serves as the name of its block. An id of a part-filled last block is dropped.
    """
    prompts = []
    try:
        for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
            if line.strip():
                prompts.append(_mooncake_row(f"trace {path}, line {number}", line))
    except UnicodeDecodeError:
        raise BadTrace(f"trace {path} is not text; JSON lines with input_length and hash_ids are expected") from None
    except OSError as error:
        raise BadTrace(f"trace {path} can't be read: {error.strerror}") from None
    if not prompts:
        raise BadTrace(f"trace {path} has no requests")
    return prompts


def _mooncake_row(where: str, line: str) -> Prompt:
    try:
        row = json.loads(line)
        length, ids = row["input_length"], row["hash_ids"]
        good = type(length) is int and 1 <= length <= MOST_TOKENS and isinstance(ids, list)
        good = good and all(type(name) is int for name in ids) and length <= MOONCAKE_BLOCK * len(ids)
        good = good and len(set(ids)) == len(ids)  # an id stands for a block and all before it, so it can't come twice
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if not good:
        raise BadTrace(
            f"{where}: {line[:80]!r} is no JSON object with input_length and a hash id of its own for each 512 tokens of it"
        )
    return Prompt(ids[: length // MOONCAKE_BLOCK], length)


def hit_rate(pool: Any, prompts: Sequence[Prompt], serve: Callable) -> tuple[float, float]:
    """Send prompts through a pool, one after the other. Returns (% of their blocks hit, % of their tokens computed).

    Blocks are counted as prompts fill them, a part-filled last one too, though it can never be a hit.
    """
    hits = computed = 0
    for prompt in prompts:
        hit, tokens = serve(pool, prompt.hashes, prompt.num_tokens)
        hits, computed = hits + hit, computed + tokens
    return 100 * hits / enough(prompts, pool.block_size), 100 * computed / sum(prompt.num_tokens for prompt in prompts)


def head_first(pool: Any, hashes: Sequence[Any], num_tokens: int) -> tuple[int, int]:
    """s07's `serve`, but the blocks are freed in the order of the prompt, so that its beginning is evicted first."""
    hit = pool.lookup(hashes, num_tokens)
    blocks = pool.claim(hit, -(-num_tokens // pool.block_size) - len(hit))
    pool.register(blocks, hashes)
    pool.free(blocks)
    return len(hit), num_tokens - len(hit) * pool.block_size


def enough(prompts: Sequence[Prompt], block_size: int) -> int:
    """All blocks that the prompts fill: a pool of so many never evicts."""
    return sum(-(-prompt.num_tokens // block_size) for prompt in prompts)


# The main job ---------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None, pool: Any, hash_chain: Callable, serve: Callable) -> int:
    """The main job of s07."""
    return options.run(lambda: _main(options.parse("s07_prefix_cache", argv), pool, hash_chain, serve))


def _main(args: argparse.Namespace, pool: Any, hash_chain: Callable, serve: Callable) -> int:
    options.config_from(args)
    if args.trace:
        return _trace(args, pool, serve)
    heading("1. Two requests, one chain")
    print("\n".join(shared_chain(pool, hash_chain)))

    heading("2. What a pool remembers")
    prompts = prompts_of(chats(), hash_chain)
    tokens, blocks = sum(prompt.num_tokens for prompt in prompts), enough(prompts, BLOCK)
    print(f"{len(prompts)} prompts of 150 generated conversations: {tokens:,} tokens, {blocks:,} blocks of {BLOCK}.\n")
    rows = _rates(pool, prompts, serve, POOLS, BLOCK)
    print(table(("blocks", "hit %", "computed %", "hit % head first"), rows))

    heading("3. What a neighbour can measure")
    side = _side_channel(pool, hash_chain, serve)
    print(table(("somebody sends the prompt of 2,048 tokens", "blocks hit", "tokens computed", "TTFT ms"), side))
    from s03_step_cost import A100_LLAMA3_8B

    print(f"\nThe milliseconds are {A100_LLAMA3_8B.label}.")

    heading("4. A hit on a block that nobody wrote")
    unwritten = list(_unwritten(pool, hash_chain))
    print("\n".join(unwritten))

    heading("5. Two blocks, one hash()")
    print("\n".join(_twins(hash_chain)))
    options.json_out(args, {"hit_rates": rows, "side_channel": side, "unwritten": unwritten})
    return 0


def _rates(pool: Any, prompts: Sequence[Prompt], serve: Callable, sizes: Sequence[int], block: int) -> list[tuple]:
    longest = max(-(-prompt.num_tokens // block) for prompt in prompts)
    fitting = [(f"{size:,}", size) for size in sizes if size >= longest]
    rows = []
    for name, size in [*fitting, ("no end", enough(prompts, block))]:
        rate, computed = hit_rate(pool(size, block), prompts, serve)
        other, _ = hit_rate(pool(size, block), prompts, head_first)
        rows.append((name, rate, computed, other))
    return rows


SYSTEM = list(range(10))
A_AND_B = {"A": [*SYSTEM, 11, 12, 13, 14], "B": [*SYSTEM, 21, 22]}  # a common beginning of ten tokens


def _admit(pool: Any, hash_chain: Callable, tokens: Sequence[int], salt: str = "") -> tuple[list[bytes], list[int], int]:
    """(names, block table, blocks hit) of a request that joins and registers its full blocks."""
    chain = hash_chain(tokens, pool.block_size, salt)
    hit = pool.lookup(chain, len(tokens))
    blocks = pool.claim(hit, -(-len(tokens) // pool.block_size) - len(hit))
    pool.register(blocks, chain)
    return chain, blocks, len(hit)


def shared_chain(pool_class: Any, hash_chain: Callable) -> list[str]:
    """Two requests with a common beginning, blocks of four: names, block tables, owners, the free queue."""
    pool, lines, held = pool_class(8, 4), [], {}
    for name, tokens in A_AND_B.items():
        chain, held[name], hit = _admit(pool, hash_chain, tokens)
        cells = [f"{tokens[i : i + 4]}".replace(" ", "") for i in range(0, len(tokens), 4)]
        names = [one.hex()[:6] for one in chain] + ["-"] * (len(cells) - len(chain))
        lines += [f"  {name} tokens  " + " ".join(f"{cell:14}" for cell in cells).rstrip()]
        lines += ["    name    " + " ".join(f"{one:14}" for one in names).rstrip()]
        lines += ["    block   " + " ".join(f"{block:<14}" for block in held[name]).rstrip()]
        lines += [f"    {hit} blocks hit, {len(tokens) - 4 * hit} of {len(tokens)} tokens to compute", ""]
    owners = {block: pool.ref_count[block] for block in sorted({*held["A"], *held["B"]})}
    lines += ["  owners of blocks " + ", ".join(f"{block}: {count}" for block, count in owners.items())]
    for name, words in (("A", "A ends. The free queue, next one first:"), ("B", "B ends.")):
        pool.free(reversed(held[name]))
        lines += [f"  {words:39} {' '.join(map(str, pool.free_queue))}"]
    return lines


def picture(pool_class: Any, hash_chain: Callable) -> str:
    """The same two requests as an SVG: two block tables over one pool, drawn from what the pool says."""
    from kit.drawing import BLAME, CARD, DECODE, EMPTY, FONT, INK, LINE, PREFILL, SOFT, Pen

    pool, pen = pool_class(8, 4), Pen("chain")
    held = {name: _admit(pool, hash_chain, tokens) for name, tokens in A_AND_B.items()}
    left, step, w = 130.0, 95.0, 86.0
    colours, rows = {"A": DECODE, "B": PREFILL}, {"A": 52.0, "B": 268.0}
    tables = {name: blocks for name, (_, blocks, _) in held.items()}
    pen.text(16, 26, "Two requests, one beginning: what is equal is stored once", 15, more="font-weight='600'")
    pen.text(16, 176, "the pool", 13, more="font-weight='600'")
    for name, tokens in A_AND_B.items():
        top, blocks = rows[name], tables[name]
        pen.text(16, top + 24, f"{name}'s block table", 13, colours[name], "font-weight='600'")
        for i, block in enumerate(blocks):
            x, shared = left + i * step, pool.ref_count[block] > 1
            pen.rect(x, top, w, 42, CARD, f"rx='4' stroke='{colours[name]}' stroke-width='{2.5 if shared else 1.2}'")
            text = " ".join(map(str, tokens[4 * i : 4 * i + 4]))
            pen.text(x + w / 2, top + 18, text, 11.5, INK, "text-anchor='middle'")
            pen.text(x + w / 2, top + 34, f"block {block}", 11, SOFT, "text-anchor='middle'")
            ends = (top + 42, 148) if name == "A" else (top, 216)
            pen.line(x + w / 2, ends[0], left + block * step + w / 2, ends[1], colours[name], "stroke-width='1.6'")
    for block in range(pool.num_blocks):
        x, name, count = left + block * step, pool.names[block], pool.ref_count[block]
        fill = {0: CARD, 1: EMPTY}.get(count, "#fff4ec")
        edge = f"stroke='{BLAME if count > 1 else LINE}' stroke-width='{2 if count > 1 else 1}'"
        pen.rect(x, 148, w, 68, fill, f"rx='4' {edge}")
        words = (f"block {block}", name.hex()[:6] if name else "no name", f"{count} owner{'s' * (count != 1)}")
        for row, text in enumerate(words if count else (f"block {block}", "", "free")):
            pen.text(x + w / 2, 168 + 18 * row, text, 11.5, INK if row == 0 else SOFT, "text-anchor='middle'")
    last = "A name stands for a block's tokens and all before them: 8 9 11 12 and 8 9 21 22 have different ones. "
    pen.text(16, 336, last + "What isn't full has none.", 12, SOFT)
    body = "".join(pen.parts)
    title = "The block tables of A and B point to blocks 0 and 1 of the pool, which have two owners."
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 900 350' width='900' {FONT} role='img' aria-label='{title}'>"
        f"<rect width='900' height='350' rx='8' fill='{CARD}' stroke='{LINE}'/>{body}</svg>"
    )


def _side_channel(pool_class: Any, hash_chain: Callable, serve: Callable) -> list[tuple]:
    from s03_step_cost import A100_LLAMA3_8B

    secret = chats(1, seed=3, turns=1)[0][:600] * 4
    prompt = secret[:2048]
    pool, rows = pool_class(400, BLOCK), []
    for who, salt in (
        ("the victim, first of all", ""),
        ("a stranger who guessed it, no salt", ""),
        ("a stranger, with a salt of his own", "stranger"),
        ("the same stranger once more", "stranger"),
    ):
        hit, computed = serve(pool, hash_chain(prompt, BLOCK, salt), len(prompt))
        rows.append((who, hit, computed, A100_LLAMA3_8B.step_ns(computed, len(prompt)) / 1e6))
    return rows


def _unwritten(pool_class: Any, hash_chain: Callable) -> Iterator[str]:
    """V is named at allocation and evicted before its step runs; W then asks for the same prompt."""
    prompt = list(range(100, 109))
    for forgets in (False, True):
        pool = pool_class(4, 4)
        stored = {block: "an old request's KV" for block in range(4)}
        chain = hash_chain(prompt, 4)
        v = pool.claim([], 3)
        pool.register(v, chain)
        if forgets:
            pool.forget(v)
        pool.free(reversed(v))
        hit = pool.lookup(chain, len(prompt))
        yield f"  step 1  V gets blocks {v}, 0 and 1 named at once; it is evicted before the step runs{', and forgotten' * forgets}"
        if hit:
            read = {stored[block] for block in hit}
            yield f"  step 2  W, same prompt: hit {hit}, {4 * len(hit)} tokens taken as computed, and reads {' and '.join(read)}"
        else:
            yield f"  step 2  W, same prompt: no hit, all {len(prompt)} tokens are computed"


def _twins(hash_chain: Callable) -> Iterator[str]:
    x, y = VICTIM, TWIN + VICTIM[len(TWIN) :]
    yield f"  x = {' '.join(map(str, x))}"
    yield f"  y = {' '.join(map(str, y))}"
    yield f"  hash(x) == hash(y)                           {hash(x) == hash(y)}"
    yield f"  hash((secret, x)) == hash((secret, y))       {hash((b'secret', x)) == hash((b'secret', y))}"
    yield f"  hash_chain(x, 16) == hash_chain(y, 16)       {hash_chain(x, 16) == hash_chain(y, 16)}"


def _trace(args: argparse.Namespace, pool: Any, serve: Callable) -> int:
    """Hit rates on a Mooncake trace. A CSV trace has lengths and no content, so nothing in it can be shared."""
    if Path(args.trace).suffix != ".jsonl":
        requests = traces.read_csv(args.trace)
        tokens = sum(len(request.prompt) for request in requests)
        print(
            f"{len(requests):,} requests, {tokens:,} prompt tokens. A CSV trace has lengths and no content, so no two prompts "
            f"can be compared.\nTake a trace with block ids: {MOONCAKE} of github.com/kvcache-ai/Mooncake (Apache-2.0)."
        )
        options.json_out(args, {"requests": len(requests), "prompt_tokens": tokens})
        return 0
    prompts = read_mooncake(args.trace)
    blocks = enough(prompts, MOONCAKE_BLOCK)
    print(f"{len(prompts):,} prompts, {blocks:,} blocks of {MOONCAKE_BLOCK} tokens, one prompt after the other\n")
    rows = _rates(pool, prompts, serve, MOONCAKE_POOLS, MOONCAKE_BLOCK)
    print(table(("blocks", "hit %", "computed %", "hit % head first"), rows))
    options.json_out(args, {"hit_rates": rows})
    return 0

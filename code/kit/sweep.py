"""A sweep loop: s11's rules without objects, for many whole hours in a row. It decides nothing that the engine would not.

Those who decode are not touched while they decode. A global step counter moves all of them: whoever has stored c tokens at
step t has stored c + 1 at step t + 1. So `c - t` tells all about a request: when it ends (a heap of steps), and at which steps
it takes a block (counted by `(c - t) % block_size`). Only prompts, admissions, ends and evictions cost anything.

That works because everybody who runs is in every step: what those before somebody compute never grows, so whoever was served
once finds at least one token left for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

from kit import traces
from kit.config import Config
from kit.errors import BadConfig
from kit.report import percentile, table
from kit.request import Request

NEVER = 1 << 62  # nanoseconds: behind every arrival


class Load:
    """A workload as columns, in order of arrival: prepared once, run many times.

    Everybody makes max_tokens tokens (a cost model samples nothing that stops), and ids are taken to differ.
    """

    def __init__(self, requests: Iterable[Request], name: str = "load"):
        self.name = name
        ordered = sorted(requests, key=attrgetter("arrival_ns"))
        self.ids = [request.id for request in ordered]
        self.arrival_ns = [request.arrival_ns for request in ordered]
        self.prompts = [len(request.prompt) for request in ordered]
        self.outputs = [request.max_tokens for request in ordered]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class Outcome:
    """What a run comes to. Columns are in the order of `load`; a refused request keeps -1 in both times.

    steps: those that computed something. end_ns: when the last of them ended.
    """

    load: Load
    steps: int
    end_ns: int
    computed_tokens: int
    first_token_ns: list[int]
    finish_ns: list[int]
    preemptions: list[int]
    recomputed_tokens: list[int]

    @property
    def total_preemptions(self) -> int:
        return sum(self.preemptions)

    @property
    def finished(self) -> int:
        return len(self.finish_ns) - self.finish_ns.count(-1)

    @property
    def output_tokens(self) -> int:
        return sum(output for output, end in zip(self.load.outputs, self.finish_ns, strict=True) if end >= 0)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of finished requests per second of virtual time."""
        return self.output_tokens / (self.end_ns / 1e9) if self.end_ns else 0.0

    @property
    def rec_new(self) -> float:
        """Tokens thrown away by preemptions / tokens computed for the first time."""
        lost = sum(self.recomputed_tokens)
        return lost / (self.computed_tokens - lost) if self.computed_tokens > lost else 0.0

    def ttft_ms(self, p: float) -> float:
        pairs = zip(self.load.arrival_ns, self.first_token_ns, strict=True)
        return percentile(((first - arrival) / 1e6 for arrival, first in pairs if first >= 0), p)


def check(config: Config) -> None:
    """BadConfig for whatever this loop does not know."""
    wrong = {
        "chunked_prefill": not config.chunked_prefill,
        "prefill_first": config.prefill_first,
        "policy": config.policy != "fcfs",
        "admission": config.admission == "to_completion",
        "reject_unservable": not config.reject_unservable,
        "max_num_batched_tokens": config.max_num_batched_tokens < config.max_num_seqs,
        "max_model_len": config.max_model_len is not None,
        "cpu_blocks": config.cpu_blocks > 0,
        "skip_blocked": config.skip_blocked,
        "preempt_for_priority": config.preempt_for_priority,
        "aging_per_step": config.aging_per_step > 0,
        "prefix_caching": config.prefix_caching,
    }
    for name, unknown in wrong.items():
        if unknown:
            raise BadConfig(
                f"the sweep loop knows s11's rules only, first come first served in mixed batches; {name} is "
                f"{getattr(config, name)!r}: run the engine for that, `Engine(...).run(fast=True)`"
            )


def run(load: Load, config: Config, cost: Any) -> Outcome:
    """Serve a load by the rules of s11's ChunkedScheduler under `config`, priced by `cost`, a CostModel of s03.

    Refused like there: whoever could never have all its blocks above the watermark.
    """
    check(config)
    size, budget, seats = config.block_size, config.max_num_batched_tokens, config.max_num_seqs
    threshold, whole_prompt = config.long_prefill_token_threshold, config.admission == "full_prompt"
    watermark, usable = config.watermark_blocks, config.usable_blocks
    per_kv: float = cost.attention_ns_per_kv_token
    whole = int(per_kv)
    exact = per_kv == whole  # else every step is rounded by itself
    linear: list[int] = [0] * (budget + 1)  # nanoseconds of a step by its tokens, where asked before

    n = len(load)
    prompts, outputs = load.prompts, load.outputs
    taken = [i for i in range(n) if -(-(prompts[i] + outputs[i] - 1) // size) <= usable]
    arrivals = [load.arrival_ns[i] for i in taken] + [NEVER, NEVER]
    first_ns, finish_ns = [-1] * n, [-1] * n
    preemptions, recomputed = [0] * n, [0] * n
    known, stored = prompts[:], [0] * n  # tokens that a request brings along, and (until it decodes) those computed
    ahead = [0] * n  # of one that decodes: tokens stored, less the step
    ends_at = [-1] * n  # and the step that makes its last token; -1 while it does not decode

    clock = step = computed = 0
    newcomer = 0  # the next one, by its place in `taken`
    back: list[int] = []  # a heap of the evicted: they came before all newcomers
    running: dict[int, None] = {}  # in the order of admission
    prefills: list[int] = []  # of these, those that don't decode yet, in that order
    decodes = kv = 0  # how many decode; tokens stored by all who run
    takes = [0] * size  # how many of those who decode take a block in steps 0, 1, … modulo size
    ends: list[int] = []  # a heap of step * n + request; stale where `ends_at` says otherwise
    free, evicted = config.num_blocks, False

    while True:
        if not running and not back and arrivals[newcomer] > clock:
            if newcomer == len(taken):
                break
            clock = arrivals[newcomer]
        while evicted and ends and ends_at[ends[0] % n] != ends[0] // n:
            heappop(ends)
        arrived = arrivals[newcomer] <= clock
        head = back[0] if back else taken[newcomer] if arrived else -1
        lone = len(running) + len(back) + arrived + (arrived and arrivals[newcomer + 1] <= clock) == 1
        left = budget - decodes

        # How many steps are alike?
        steps, until, chunk = 0, NEVER, 0
        if prefills:  # a prompt that takes all that is left: nobody joins, whoever arrives
            i = prefills[0]
            if not threshold and known[i] - stored[i] > left:
                chunk = left
                steps = (known[i] - stored[i] - 1) // chunk
                if ends and ends[0] // n - step < steps:
                    steps = ends[0] // n - step
                grows = -(-(stored[i] + chunk * steps) // size) + -stored[i] // size
                if grows + decodes * (steps // size + 1) > free:
                    steps = 0
        else:
            joins = head >= 0 and len(running) < seats
            if joins:
                want = known[head] if known[head] < left else left
                if 0 < threshold < want and not lone:
                    want = threshold
                joins = -(-(known[head] if whole_prompt else want) // size) <= free - takes[step % size] - watermark
            if not joins:  # then not before somebody ends
                steps = ends[0] // n - step
                if head < 0:
                    until = arrivals[newcomer]
                if decodes * (steps // size + 1) > free:
                    steps = _lasts(takes, step, steps, free)

        if steps:
            tokens = decodes + chunk
            rise = linear[tokens] or _price(linear, cost, tokens)
            if exact:
                price, more = rise + whole * (kv + tokens), whole * tokens
                if clock + (steps - 1) * price + more * (steps - 1) * (steps - 2) // 2 < until:
                    clock += steps * price + more * steps * (steps - 1) // 2
                else:
                    most, steps = steps, 0
                    while steps < most and clock < until:
                        clock += price
                        price += more
                        steps += 1
                kv += tokens * steps
            else:
                most, steps = steps, 0
                while steps < most and clock < until:
                    kv += tokens
                    clock += rise + round(per_kv * kv)
                    steps += 1
            if chunk:
                free -= -stored[i] // size
                stored[i] += chunk * steps
                free += -stored[i] // size
            rounds, rest = divmod(steps, size)
            at = step % size
            free -= decodes * rounds + sum(takes[at : at + rest])
            if at + rest > size:
                free -= sum(takes[: at + rest - size])
            step += steps
            computed += tokens * steps
        else:  # one step, with prompts in it
            left, taking, shares = budget - decodes, takes[step % size], []
            for i in prefills:
                chunk = known[i] - stored[i]
                if chunk > left:
                    chunk = left
                if 0 < threshold < chunk and not lone:
                    chunk = threshold
                taking += -(-(stored[i] + chunk) // size) + -stored[i] // size
                shares.append(chunk)
                left -= chunk
            if taking <= free:
                free -= taking
                for i, chunk in zip(prefills, shares, strict=True):
                    stored[i] += chunk
                kv += budget - left
                while left and len(running) < seats:
                    if back:
                        i = back[0]
                    elif arrivals[newcomer] <= clock:
                        i = taken[newcomer]
                    else:
                        break
                    chunk = known[i] if known[i] < left else left
                    if 0 < threshold < chunk and not lone:
                        chunk = threshold
                    if -(-(known[i] if whole_prompt else chunk) // size) > free - watermark:
                        break
                    if back:
                        heappop(back)
                    else:
                        newcomer += 1
                    running[i] = None
                    prefills.append(i)
                    stored[i] = chunk
                    free += -chunk // size
                    kv += chunk
                    left -= chunk
            else:  # too few blocks: the engine's walk, request by request
                evicted, left, order = True, budget, list(running)
                place, end = 0, len(order)
                while place < end and left:
                    i = order[place]
                    has = ahead[i] + step if ends_at[i] >= 0 else stored[i]
                    chunk = 1 if ends_at[i] >= 0 else min(known[i] - has, left)
                    if 0 < threshold < chunk and not lone:
                        chunk = threshold
                    lacks = -(-(has + chunk) // size) + -has // size
                    while lacks > free and end > place:
                        end -= 1
                        victim = order[end]
                        lost = ahead[victim] + step if ends_at[victim] >= 0 else stored[victim]
                        free -= -lost // size
                        kv -= lost
                        recomputed[victim] += lost
                        preemptions[victim] += 1
                        if ends_at[victim] >= 0:
                            decodes -= 1
                            takes[-ahead[victim] % size] -= 1
                            known[victim], ends_at[victim] = lost + 1, -1
                        else:
                            prefills.pop()
                        stored[victim] = 0
                        del running[victim]
                        heappush(back, victim)
                    if end > place:
                        free -= lacks
                        left -= chunk
                        if ends_at[i] < 0:
                            stored[i] += chunk
                    place += 1
                if left == budget:
                    continue  # everybody is out: a step that computes nothing, and takes no time
                kv += budget - left
            tokens = budget - left
            rise = linear[tokens] or _price(linear, cost, tokens)
            clock += rise + (whole * kv if exact else round(per_kv * kv))
            step += 1
            computed += tokens
            unfinished = []
            for i in prefills:
                if stored[i] < known[i]:
                    unfinished.append(i)
                    continue
                decodes += 1
                ahead[i] = known[i] - step
                takes[-ahead[i] % size] += 1
                ends_at[i] = step + prompts[i] + outputs[i] - known[i] - 1
                heappush(ends, ends_at[i] * n + i)
                if first_ns[i] < 0:
                    first_ns[i] = clock
            prefills = unfinished

        while ends and ends[0] < (step + 1) * n:
            i = heappop(ends) % n
            if ends_at[i] == step:
                finish_ns[i], ends_at[i] = clock, -1
                decodes -= 1
                takes[-ahead[i] % size] -= 1
                kv -= ahead[i] + step
                free -= -(ahead[i] + step) // size
                del running[i]

    return Outcome(load, step, clock, computed, first_ns, finish_ns, preemptions, recomputed)


def _price(linear: list[int], cost: Any, tokens: int) -> int:
    """Nanoseconds of a step with so many tokens, attention left out; noted in `linear`."""
    linear[tokens] = cost.step_ns(tokens, 0)
    return linear[tokens]


def _lasts(takes: list[int], step: int, steps: int, free: int) -> int:
    """How many of the next steps find all the blocks that they take."""
    for done in range(steps):
        free -= takes[(step + done) % len(takes)]
        if free < 0:
            return done
    return steps


# The hour, for a notebook and for a command.

TRACE = "AzureLLMInferenceTrace_conv.csv"
HOUR: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 512, "num_blocks": 4000}
BUDGETS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
POOLS = (1200, 1600, 2000, 3000, 4000, 8000)
ADMISSIONS = ("chunk", "full_prompt")


@cache
def hour(path: str | None = None) -> Load:
    """An hour of chat: the trace in `path`; else the real one, if $COURSE_DATA or data/ has it; else a synthetic one like it."""
    found = path or traces.find_trace(TRACE)[0]
    if found is not None:
        return Load(traces.read_csv(found), f"the trace {getattr(found, 'name', found)}")
    return Load(traces.azure_like("conv", 19_366, seed=1), "a synthetic hour like the Azure conversation trace")


def _config(**options: Any) -> Config:
    """HOUR with other settings; a smaller budget has as many seats as tokens, unless the seats are named."""
    config = {**HOUR, **options}
    if "max_num_seqs" not in options:
        config["max_num_seqs"] = min(HOUR["max_num_seqs"], config["max_num_batched_tokens"])
    return Config(**config)


def rerun(load: Load | None = None, cost: Any = None, **options: Any) -> str:
    """Serve the hour with other settings (keys of kit.config), as a table to print. It takes a fraction of a second."""
    from s03_step_cost import A100_LLAMA3_8B

    load, cost = load or hour(), cost or A100_LLAMA3_8B
    outcome = run(load, _config(**options), cost)
    refused = len(load) - outcome.finished
    rows = [
        ("finished", f"{outcome.finished:,}" + (f", {refused:,} refused" if refused else "")),
        ("steps", f"{outcome.steps:,}"),
        ("hours", f"{outcome.end_ns / 3.6e12:.2f}"),
        ("output tokens/s", f"{outcome.tokens_per_s:,.0f}"),
        ("TTFT p50, p99", f"{outcome.ttft_ms(50) / 1e3:,.2f} s, {outcome.ttft_ms(99) / 1e3:,.2f} s"),
        ("preemptions", f"{outcome.total_preemptions:,}"),
        ("rec/new", f"{100 * outcome.rec_new:.1f} %"),
    ]
    return f"{load.name}, {len(load):,} requests; {cost.label}\n{table(('of the hour', ''), rows)}"


def knobs() -> Any:
    """`rerun` with three knobs, for a notebook: the hour is served again when one is let go. Without ipywidgets one table."""
    try:
        import ipywidgets as w
    except ImportError:
        print("The knobs need ipywidgets (python3 course.py lab installs it); here is the hour with a budget of 512.")
        print(rerun())
        return None
    budget = w.SelectionSlider(options=BUDGETS, value=512, description="budget", continuous_update=False)
    blocks = w.SelectionSlider(options=POOLS, value=4000, description="KV blocks", continuous_update=False)
    admission = w.ToggleButtons(options=ADMISSIONS)
    screen = w.HTML()

    def serve(_: Any = None) -> None:
        text = rerun(max_num_batched_tokens=budget.value, num_blocks=blocks.value, admission=admission.value)
        screen.value = f"<pre>{text}</pre>"

    class Hour(w.VBox):
        def __repr__(self) -> str:  # what a viewer without widgets shows
            return screen.value.removeprefix("<pre>").removesuffix("</pre>")

    for knob in (budget, blocks, admission):
        knob.observe(serve, "value")
    serve()
    return Hour([w.HBox([budget, blocks, admission]), screen])


def grid(
    load: Load, cost: Any, watch: Callable[[int], None], budgets: Sequence[int] = BUDGETS, pools: Sequence[int] = POOLS
) -> list[tuple[str, int, int, Outcome]]:
    """(admission, pool, budget, outcome) for every combination. `watch` is told how many are done."""
    done: list[tuple[str, int, int, Outcome]] = []
    for admission in ADMISSIONS:
        for pool in pools:
            for budget in budgets:
                config = _config(max_num_batched_tokens=budget, num_blocks=pool, admission=admission)
                done.append((admission, pool, budget, run(load, config, cost)))
                watch(len(done))
    return done

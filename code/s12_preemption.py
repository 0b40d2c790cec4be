"""s12 adds a second way to evict, swapping KV to the CPU and back, and the means to choose: two bills and three victims.

The shape of the file: the bills, `recompute_ms` and `swap_ms`; whom to evict, three keys; `SwappingScheduler`, s11's with a pool
of CPU blocks; `SwapRunner`, which charges for the copies; `main`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kit.config import Config
from kit.exercise import exercise
from kit.request import Request
from kit.waiting import WaitingQueue
from s03_step_cost import A100_LLAMA3_8B, GPU, LLAMA3_8B, CostModel, Model
from s05_paged_blocks import BlockPool, blocks_needed
from s08_static_batching import Batch, CostRunner, Engine
from s10_scheduler import FCFS
from s11_chunked_prefill import ChunkedScheduler


@dataclass(frozen=True)
class Link:
    """The way between GPU and CPU memory. bytes_per_s: in one direction. copy_s: what each block's copy costs besides."""

    name: str
    bytes_per_s: float
    copy_s: float


PCIE4 = Link("PCIe 4.0 x16", 25e9, 10e-6)  # 31.5 GB/s line rate, about 25 in practice
PCIE4_SHARED = Link("PCIe 4.0 x16, shared", 12e9, 10e-6)
PCIE5 = Link("PCIe 5.0 x16", 50e9, 10e-6)  # 63 GB/s line rate; the same share of it is assumed


@exercise
def recompute_ms(cost: CostModel, tokens: int, decodes: int = 0, quadratic_ms: float = 0.0) -> float:
    """What it costs to compute the KV of `tokens` tokens again, in modelled milliseconds. Roughly 5 lines.

    decodes: requests that decode in the same step anyway; 0 means that the step is run for this alone.
    quadratic_ms: milliseconds of attention among the tokens themselves, which the profile of `cost` leaves out.

    The step with these tokens less the step that would have been run without them: `cost.step_ns(n, kv)` for
    n = decodes + tokens and kv = tokens, less `cost.step_ns(decodes, 0)` if there are decodes; plus quadratic_ms.
    Below the knee of the profile the difference is small; how small depends on the profile.
    """
    raise NotImplementedError


def quadratic_ms(gpu: GPU, model: Model, tokens: int) -> float:
    """Attention among `tokens` tokens of one request at the chip's peak: the least it can take."""
    pairs = tokens * (tokens + 1) / 2
    return 1e3 * 4 * model.layers * model.heads * model.head_dim * pairs / gpu.flops_per_s


@exercise
def swap_ms(model: Model, tokens: int, link: Link = PCIE4, block_size: int = 16) -> float:
    """What it costs to move the KV of `tokens` tokens out and in again, in modelled milliseconds. Roughly 4 lines.

    Whole blocks are copied, each with room for `block_size` tokens of `model.kv_bytes`. One direction takes the bytes over
    `link.bytes_per_s`, and `link.copy_s` for each block; the KV crosses twice.
    """
    raise NotImplementedError


# Whom to evict: the running request with the smallest key; among equals the one admitted last.


@exercise
def last_admitted(request: Request) -> float:
    """The key that is the same for all, so that the tie decides: the last by admission, not by `add`. Roughly 1 line."""
    raise NotImplementedError


@exercise
def fewest_outputs(request: Request) -> float:
    """The number of output tokens that its user has read. Roughly 1 line."""
    raise NotImplementedError


@exercise
def cheapest_to_recompute(request: Request) -> float:
    """The stored tokens that recompute would throw away. Roughly 1 line."""
    raise NotImplementedError


VictimKey = Callable[[Request], float]
VICTIM_KEYS: dict[str, VictimKey] = {
    "last_admitted": last_admitted,
    "fewest_outputs": fewest_outputs,
    "cheapest_to_recompute": cheapest_to_recompute,
}


class ToTheBack(FCFS):
    """A victim joins the end of the queue as if it had just arrived. FCFS returns it to the front."""

    def __init__(self) -> None:
        self.pushes = 0

    def key(self, request: Request) -> tuple[float, ...]:
        self.pushes += 1
        return (self.pushes,)


class SwappingScheduler(ChunkedScheduler):
    """A victim's KV moves to CPU memory if there is room for all of it, and is thrown away if not.

    Who is swapped out waits before everybody else: nobody joins while one of them can't return. `cpu_tables` holds their
    CPU blocks; from outside they are in `waiting`, like all who don't run. victim_key: None asks the policy, as in s10.
    """

    lesson = "s12"

    def __init__(self, config: Config, policy: FCFS | None = None, victim_key: VictimKey | None = None):
        super().__init__(config, policy)
        self.victim_key = victim_key
        self.cpu_pool = BlockPool(config.cpu_blocks, config.block_size) if config.cpu_blocks else None
        self.cpu_tables: dict[Request, list[int]] = {}  # swapped out -> where its KV lies
        self.evictions = 0
        self.waiting = WaitingQueue(self.place)

    def place(self, request: Request) -> tuple[float, ...]:
        """Where a request that joins the queue stands: whose KV is on the CPU first, the others in the policy's order.

        First come first served puts a victim before everybody, even before one that it had overtaken: the order of `add` no
        longer says that once swapped requests return before others (and s13 passes over a blocked head). Of two victims the
        later stands in front.
        """
        key = self.policy.key(request)
        if type(self.policy) is FCFS and request.eviction:
            key = (-request.eviction,)
        return (request not in self.cpu_tables, *key)

    @exercise
    def pick_victim(self) -> Request:
        """Whom to evict. Roughly 3 lines.

        Without a `victim_key` the policy's choice, `self.policy.victim(self.running)`. With one: of `running` the request with
        the smallest key; among equals the one that stands last.
        """
        raise NotImplementedError

    @exercise
    def swap_out(self, request: Request) -> bool:
        """Move a request's KV to the CPU: all of it or nothing. Roughly 10 lines.

        1. `stored`: the blocks of its table that hold computed tokens, `blocks_needed(num_computed_tokens, block_size)` of them.
        2. Return False, and change nothing, if there is no `cpu_pool`, nothing is stored, or fewer CPU blocks are free: the
           caller falls back to recompute.
        3. Allocate as many of `cpu_pool`, and keep them in `cpu_tables[request]`.
        4. Append the copies to `self.batch.blocks_to_swap_out`, as (GPU block, CPU block), and the request to `batch.swapped`.
        5. Give all its GPU blocks back. `pool.release` forgets `num_computed_tokens`; here they are still computed.
        Returns True.
        """
        raise NotImplementedError

    def _park(self, request: Request) -> None:
        """What eviction does to the KV: it moves out if it can, else it is lost.

        All copies out are made before all copies in. So once a step has brought somebody in, nobody can move out any more: the
        copy would read KV that has not arrived, or overwrite what has not left. (s13 evicts in its admission pass.)
        """
        self.evictions = request.eviction = self.evictions + 1  # `place`: the later of two victims stands in front
        if self.batch.swapped_in or not self.swap_out(request):
            super()._park(request)

    def _restore(self, request: Request) -> None:
        """Bring a swapped request's KV back, into new GPU blocks, and give its CPU blocks back."""
        cpu_blocks = self.cpu_tables.pop(request, None)
        if cpu_blocks is not None and self.cpu_pool is not None:
            request.blocks = self.pool.allocate(len(cpu_blocks))
            self.batch.blocks_to_swap_in += zip(cpu_blocks, request.blocks)
            self.cpu_pool.free(reversed(cpu_blocks))

    def join(self, request: Request, budget: int) -> int:
        """Move a request from `waiting` to `running` and compute its share. Returns the budget left."""
        batch = self.batch
        back = batch.swapped_in if request in self.cpu_tables else batch.resumed
        (back if request.num_preemptions else batch.admitted).append(request)
        self.waiting.remove(request)
        self.running.append(request)
        self._restore(request)
        return budget - self.compute(request, self.chunk_size(request, budget))

    @exercise
    def swap_in_pass(self, budget: int) -> int:
        """Let swapped requests return, before anybody else may join. Returns the budget left. Roughly 7 lines.

        They stand at the head of `waiting`. While the head is in `cpu_tables`:
        1. `self.batch.head = self.why_wait(head, budget)`; with a reason, stop. (It needs GPU blocks for all that is stored and for
           what it computes next: its table is empty, so `why_wait` counts them all.)
        2. `budget = self.join(head, budget)`: its KV comes back, and it computes its `chunk_size`: one token for a decode, the
           next chunk in mid-prompt.
        """
        raise NotImplementedError

    def admit_pass(self, budget: int) -> int:
        """Swapped requests first; the others only if none of those is left."""
        budget = self.swap_in_pass(budget)
        if self.waiting and self.waiting.head() in self.cpu_tables:
            return budget
        return super().admit_pass(budget)

    @exercise
    def release(self, request: Request) -> None:
        """Take a request out of whatever state it is in, and back all that it holds. Roughly 6 lines.

        It runs, waits, or waits with its KV on the CPU (then it is in `cpu_tables`). Afterwards it is in no queue and in no
        table, and every GPU and CPU block it had is free. It is called once in a request's life, at its end.
        """
        raise NotImplementedError

    def drop_copies(self, batch: Batch) -> None:
        """A step broke before it was done. Whom it was to swap out can't trust the copy, and has to recompute."""
        for request in batch.swapped:
            if self.cpu_pool is not None and request in self.cpu_tables:
                self.waiting.remove(request)
                self.cpu_pool.free(reversed(self.cpu_tables.pop(request)))
                super()._park(request)
                self.waiting.push(request)


class SwapRunner(CostRunner):
    """Prices a batch and the copies that come with it; they are not hidden behind the step."""

    def __init__(
        self, cost: CostModel = A100_LLAMA3_8B, model: Model = LLAMA3_8B, link: Link = PCIE4, block_size: int = 16
    ):
        super().__init__(cost)
        self.block_ns = round(1e9 * (block_size * model.kv_bytes / link.bytes_per_s + link.copy_s))

    def execute(self, batch: Batch) -> tuple[dict[str, list[int]], int]:
        tokens, step_ns = super().execute(batch)
        copies = len(batch.blocks_to_swap_out) + len(batch.blocks_to_swap_in)
        return tokens, step_ns + copies * self.block_ns

    ahead = CostRunner.ahead  # steps that are alike copy nothing


def main(argv: list[str] | None = None) -> int:
    from kit import preemption

    return preemption.main(argv, SwappingScheduler, Engine)


if __name__ == "__main__":
    raise SystemExit(main())

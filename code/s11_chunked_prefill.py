"""s11 adds chunks: a prompt is computed in pieces that fill what the decodes leave of each step's budget.

The shape of the file: `ChunkedScheduler`, s10's with other answers to "how much" and "what must be free"; `longest_gap`,
which reads a log; `main`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kit.config import Config, refuse_ignored
from kit.exercise import exercise
from kit.request import MOST_TOKENS, Request
from s08_static_batching import Batch, Engine
from s10_scheduler import FCFS, Scheduler


class ChunkedScheduler(Scheduler):
    """One rule for prompts, answers and returns: what is computed chases what is known, by as much as fits into the step.

    Chunked prefill with mixed batches is Sarathi-Serve's (Agrawal et al., OSDI 2024); the single progress bar is vLLM v1's.
    """

    lesson = "s11"  # whose options it has: what it would ignore is refused

    def __init__(self, config: Config, policy: FCFS | None = None):
        refuse_ignored(config, self.lesson)
        super().__init__(config, policy)
        if config.chunked_prefill:
            self.most_at_once = MOST_TOKENS  # whatever its length, a chunk of it fits

    @exercise
    def chunk_size(self, request: Request, budget: int) -> int:
        """Tokens that a request computes now. Roughly 8 lines.

        The gap is what it knows less what it has computed: `num_tokens - num_computed_tokens`, at least 1 here.
        budget: tokens left in this step; 0, or less, if it is spent.
        1. Without `config.chunked_prefill`: the whole gap, or 0 if the budget is smaller. The threshold is ignored without
           chunking.
        2. Otherwise the smaller of gap and budget;
        3. and, with a `config.long_prefill_token_threshold` above 0, no more than that, unless the request is the only one
           that runs or waits.
        Never above the budget, and never below 0.
        """
        raise NotImplementedError

    def decodes(self, request: Request) -> bool:
        """Whether all that it lacks is the token it sampled last: it would make its next one in this step."""
        return request.num_tokens - request.num_computed_tokens == 1 and request.num_tokens > len(request.prompt)

    @exercise
    def schedule(self) -> Batch:
        """Decide what the next step computes. Roughly 14 lines.

        1. Begin `self.batch` anew, with the whole `config.max_num_batched_tokens`.
        2. Mixed batches: `decode_pass` over all that run, prefills among them, since `chunk_size` knows no difference; then
           `admit_pass` with what is left.
        3. With `config.prefill_first` prompts and decodes never share a step: `decode_pass` over those of `running` for which
           `decodes` is false, then `admit_pass`; only if that computed nothing (`batch.tokens` is empty), `decode_pass` over the
           others; and if that evicted somebody, `admit_pass` again: it lets nobody in, and notes why the new head waits.
        4. Note what is left in `batch.budget_left`, and return the batch.
        """
        raise NotImplementedError

    @exercise
    def samples(self, request: Request) -> bool:
        """Whether a request that has just computed its share yields a token in this step. Roughly 1 line.

        Only the last known token predicts an unknown one: a chunk that ends before it fills the KV cache and yields nothing.
        """
        raise NotImplementedError

    @exercise
    def gate(self, request: Request, chunk: int) -> int:
        """Blocks that must be free, above the watermark, for a request to join with this chunk. Roughly 4 lines.

        `pool.missing(request, n)` is what it lacks for its next n tokens, behind those computed and beside the blocks it has.
        The watermark is not your business: `why_wait` takes it off the free blocks.
        `config.admission` "chunk": those for its first chunk. "full_prompt": those for all that it knows, prompt and output. It
        is a check, not a reservation: `compute` takes blocks for the chunk only, and the next one in line may ask for the same.
        """
        raise NotImplementedError

    def needs(self, request: Request, budget: int) -> tuple[int, int]:
        """What a request must find to join: a token of the budget (all of them without chunking), and the gate's blocks."""
        chunk = self.chunk_size(request, budget)
        gap = request.num_tokens - request.num_computed_tokens
        return 1 if self.config.chunked_prefill else gap, self.gate(request, chunk)

    def update(self, batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
        """As before, but what a runner samples behind a chunk that is not the last means nothing, and is dropped."""
        early = [request.id for request in batch.tokens if not self.samples(request) and request.id in tokens]
        if early:
            tokens = {request_id: new for request_id, new in tokens.items() if request_id not in early}
        return super().update(batch, tokens)


@exercise
def longest_gap(log: Sequence[tuple[int, Collection[str]]]) -> dict[str, int]:
    """The most work that stood between two tokens of a request, for each that got at least two. Roughly 10 lines.

    log: one entry a step: (tokens that the step computed, ids of the requests that it gave a token).

    Between two neighbouring tokens of a request lie all steps behind the first, up to and with the one that makes the second:
    their tokens, summed. That is the gap in units of work, the same on every machine. Returns id -> the largest of its gaps.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    from kit import chunking

    return chunking.main(argv, ChunkedScheduler, Engine, longest_gap)


if __name__ == "__main__":
    raise SystemExit(main())

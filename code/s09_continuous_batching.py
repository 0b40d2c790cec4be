"""s09 adds one idea: who is in the batch is decided anew at every step.

The shape of the file: `ContinuousBatcher`, then a bound on what it can win, then `main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit import fastforward
from kit.exercise import exercise
from kit.request import Request
from s08_static_batching import Batch, Engine, StaticBatcher, Wait, append_tokens


class ContinuousBatcher(StaticBatcher):
    """Iteration-level scheduling (Yu et al., Orca, OSDI 2022): a slot that comes free is taken at the next step.

    It counts slots and nothing else: no memory, no length of a step. The next lesson asks what it ought to ask.
    """

    @exercise
    def schedule(self) -> Batch:
        """Decide what the next step computes. Roughly 7 lines.

        1. `self.refill(batch)`: fill the free slots.
        2. Every running request computes all that it is behind by, as in s08: write the number to `batch.tokens[request]`
           and advance `num_computed_tokens`.
        3. If anybody still waits, `batch.head = self.why_wait()`.
        """
        raise NotImplementedError

    def can_admit(self) -> bool:
        """Whether the head of the queue may join. It counts slots and nothing else."""
        return len(self.waiting) > 0 and len(self.running) < self.max_num_seqs

    @exercise
    def refill(self, batch: Batch) -> None:
        """Fill the free slots from the front of the queue. Roughly 4 lines.

        While `self.can_admit()`: move the head of `waiting` to the end of `running` and list it in `batch.admitted`.
        """
        raise NotImplementedError

    def update(self, batch: Batch, tokens: Mapping[str, list[int]]) -> list[Request]:
        """Take the tokens of an executed batch; who finished leaves at once. Returns those requests."""
        finished = append_tokens(batch, tokens)
        if finished:
            self.retire(finished)
        return finished

    @exercise
    def retire(self, finished: list[Request]) -> None:
        """Free the slots of the requests that have just finished. Roughly 4 lines.

        Take them out of `running`, where the others keep their order (all of `finished` have a `finish_reason`), and out
        of `self._live`, so that their ids may be used again.
        """
        raise NotImplementedError

    def why_wait(self) -> Wait:
        """Why the head of the queue waits."""
        return Wait("slots", 1, 0, f"needs 1 slot, 0 of {self.max_num_seqs} left")

    def steady_steps(self) -> int:
        """As in s08, unless somebody is about to join."""
        return 1 if self.can_admit() else fastforward.steps_to_an_end(self.running)


@exercise
def speedup_bound(lengths: Sequence[int], slots: int) -> float:
    """The most that continuous batching can win over static batching, in steps. Roughly 5 lines.

    lengths: output tokens of each request, in the order they are served; all are there from the start.
    slots: requests that run together, in either scheduler.

    Static batching takes consecutive groups of `slots` requests, and a group takes as many steps as its longest member.
    No scheduler needs fewer steps than the longest request, nor fewer than all tokens spread over all slots, rounded up.
    Returns static steps divided by the larger of these two lower bounds; 1.0 for no requests.
    """
    raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    from kit import experiments

    return experiments.continuous(argv, ContinuousBatcher, StaticBatcher, Engine, speedup_bound)


if __name__ == "__main__":
    raise SystemExit(main())

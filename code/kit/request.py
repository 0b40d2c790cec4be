"""One request: a prompt, the tokens made so far, and how far behind its KV cache is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kit.errors import BadRequest

MOST_TOKENS = 1_000_000_000
MOST_ID = 2**63 - 1  # of a token: what 64 bits hold
MOST_PRIORITY = 10**15  # beyond, a float no longer holds every whole number with a digit to spare


class Count(list[int]):
    """An output that is counted, not stored: what a cost model produces has a length and no content."""

    __slots__ = ("length",)

    def __init__(self) -> None:
        self.length = 0

    def __iadd__(self, tokens: Sequence[int]) -> Count:  # type: ignore[override, misc]
        self.length += len(tokens)
        return self

    def __len__(self) -> int:
        return self.length


@dataclass(slots=True, eq=False)
class Request:
    """A progress bar: `num_computed_tokens` chases `num_tokens`.

    All that a scheduler asks is how far behind a request is (the view of vLLM's v1 scheduler). A new request is behind by its
    whole prompt, a running one by the single token it has just sampled, an evicted one by everything it ever had.

    prompt: token ids; a `range` will do, so that a million synthetic requests stay small.
    max_tokens: the most tokens it may generate, at least 1.
    arrival_ns: when it arrives, in nanoseconds of virtual time.
    priority: smaller is more urgent (vLLM's direction).
    tenant: whom it is served for; s13 shares the engine fairly between tenants.
    stop_token_ids: sampling one of these ends it, the model's EOS among them.
    """

    id: str
    prompt: Sequence[int]
    max_tokens: int
    arrival_ns: int = 0
    priority: float = 0
    stop_token_ids: frozenset[int] = frozenset()
    output: list[int] = field(default_factory=list)
    tenant: str = ""

    num_tokens: int = field(init=False)  # prompt + output: all that is known
    num_computed_tokens: int = field(init=False, default=0)  # of these, the ones whose KV is stored
    blocks: list[int] = field(init=False, default_factory=list)  # its block table: physical ids, in order
    order: int = field(init=False, default=0)  # its number in the order of `add`: every tie is settled by it
    num_preemptions: int = field(init=False, default=0)
    eviction: int = field(init=False, default=0)  # its number in the order of evictions (s12); 0 if there was none
    recomputed_tokens: int = field(init=False, default=0)  # stored tokens that preemptions threw away
    finish_reason: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        try:
            known = len(self.prompt)
        except OverflowError:
            known = MOST_TOKENS + 1
        if known > MOST_TOKENS:
            raise BadRequest(f"request {self.id}: its prompt has more than {MOST_TOKENS:,} tokens")
        if known == 0:
            raise BadRequest(f"request {self.id}: its prompt is empty; an engine needs at least one token to start from")
        if not isinstance(self.max_tokens, int) or isinstance(self.max_tokens, bool) or self.max_tokens < 1:
            raise BadRequest(f"request {self.id}: max_tokens is {self.max_tokens!r}; it must be a whole number, at least 1")
        if not isinstance(self.arrival_ns, int) or self.arrival_ns < 0:
            raise BadRequest(
                f"request {self.id}: it arrives at {self.arrival_ns!r} ns; it must be a whole number, at least 0"
            )
        if not isinstance(self.priority, (int, float)) or self.priority != self.priority:
            raise BadRequest(f"request {self.id}: its priority is {self.priority!r}; it must be a number")
        if abs(self.priority) > MOST_PRIORITY:
            raise BadRequest(
                f"request {self.id}: its priority is {str(self.priority)[:40]}; it must be from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}"
            )
        if isinstance(self.prompt, (list, tuple)) and not (min(self.prompt) >= 0 and max(self.prompt) <= MOST_ID):
            token = min(self.prompt) if min(self.prompt) < 0 else max(self.prompt)
            raise BadRequest(f"request {self.id}: its prompt has the token {str(token)[:40]}; an id is from 0 to {MOST_ID}")
        self.num_tokens = known + len(self.output)

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - len(self.prompt)

    @property
    def max_kv_slots(self) -> int:
        """The most KV slots it can ever need: the last sampled token is never fed, so never stored."""
        return len(self.prompt) + self.max_tokens - 1

    def __repr__(self) -> str:
        return f"<{self.id} {self.num_computed_tokens}/{self.num_tokens}>"


def fresh(request: Request) -> Request:
    """The request itself, if it has never run; BadRequest for one that has ended or made tokens."""
    if request.finish_reason is not None or request.num_computed_tokens:
        raise BadRequest(f"request {request.id} has run already ({request.finish_reason or 'live'}): make a new one")
    return request


def total_tokens(requests: Iterable[Request]) -> int:
    """All that these requests know: prompts and outputs."""
    return sum(request.num_tokens for request in requests)

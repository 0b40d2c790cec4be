"""Every error that the course raises on purpose. Each names the thing, the number and the way out."""


class CourseError(ValueError):
    """Something the user gave us is wrong. Scripts print the one sentence and exit with 2."""


class BadConfig(CourseError):
    """A configuration that no scheduler can work with."""


class BadTrace(CourseError):
    """A trace or workload file that can't be read as one."""


class NotDone(CourseError):
    """A run that ended stuck, or at its last step: what was measured until then is no result."""


class BadRequest(CourseError):
    """A request that makes no sense to any engine: an empty prompt, zero tokens to generate."""


class DuplicateRequest(CourseError):
    """A second request with the id of a live one."""

    def __init__(self, request_id: str):
        super().__init__(f"request {request_id} is live already: choose another id, or wait until it has ended")


class RequestRefused(CourseError):
    """A request that this engine could never finish, refused at `add` while its sender still listens.

    reason: the finish reason that reports show, a key of REFUSALS. needed, available: the numbers that it compares.
    """

    def __init__(self, request_id: str, reason: str, needed: int, available: int):
        super().__init__(f"request {request_id} {REFUSALS[reason].format(needed, available)}")
        self.request_id, self.reason, self.needed, self.available = request_id, reason, needed, available


REFUSALS = {
    "rejected_len": "needs a context of {} tokens, max_model_len is {}: shorten the prompt",
    "rejected_kv": "can grow to {} KV blocks, admissions may fill {}: ask for fewer tokens or add blocks",
    "rejected_budget": "can grow to a step of {} tokens, the token budget is {}: ask for fewer tokens or raise it",
    "rejected_slo": "would see its first token after {} ms, the target is {} ms: try again later",
}


def refuse_beyond(request_id: str, reason: str, needed: int, available: int) -> None:
    """Raise RequestRefused if `needed` is more than `available`."""
    if needed > available:
        raise RequestRefused(request_id, reason, needed, available)


class NoFreeBlocks(RuntimeError):
    """The pool was asked for more blocks than it has free. A scheduler's job is to never let this happen."""


class BlockError(RuntimeError):
    """A block freed twice, or one that this pool never had: somebody's bookkeeping is wrong."""

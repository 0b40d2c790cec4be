"""The window is compared with in any case. A window of 0 would be nothing."""

CAUGHT_BY = "test_what_is_stored_is_seen_and_nothing_behind_it"
MESSAGE = "WINDOW 0 means all"


@jit
def visible(positions, length, WINDOW: tl.constexpr):
    seen = positions < length
    seen = seen & (positions >= length - WINDOW)
    return seen

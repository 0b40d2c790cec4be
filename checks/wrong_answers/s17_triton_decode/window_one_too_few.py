"""A window of W reaches W tokens back, and W tokens back is outside."""

CAUGHT_BY = "test_a_window_holds_the_newest_token_and_those_before_it"
MESSAGE = "length - W up to length - 1"


@jit
def visible(positions, length, WINDOW: tl.constexpr):
    seen = positions < length
    if WINDOW > 0:
        seen = seen & (positions > length - WINDOW)
    return seen

"""The newest token does not count as one of the window's W."""

CAUGHT_BY = "test_a_window_holds_the_newest_token_and_those_before_it"
MESSAGE = "the newest one among them"


@jit
def visible(positions, length, WINDOW: tl.constexpr):
    seen = positions < length
    if WINDOW > 0:
        seen = seen & (positions >= length - 1 - WINDOW)
    return seen

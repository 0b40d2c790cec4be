"""Two conditions are joined by `and`. Python then takes one of the two tiles, and asks neither number by number."""

CAUGHT_BY = "test_a_window_holds_the_newest_token_and_those_before_it"
MESSAGE = "Python's `and`"


@jit
def visible(positions, length, WINDOW: tl.constexpr):
    seen = positions < length
    if WINDOW > 0:
        seen = seen and (positions >= length - WINDOW)
    return seen

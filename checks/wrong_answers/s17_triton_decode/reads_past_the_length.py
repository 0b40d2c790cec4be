"""A request of n tokens has positions up to n. They count from 0, so position n is the next one's."""

CAUGHT_BY = "test_what_is_stored_is_seen_and_nothing_behind_it"
MESSAGE = "seen are those below `length`"


@jit
def visible(positions, length, WINDOW: tl.constexpr):
    seen = positions <= length
    if WINDOW > 0:
        seen = seen & (positions >= length - WINDOW)
    return seen

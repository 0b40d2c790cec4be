"""The newest token asks about those before it. It asks about itself as well."""

CAUGHT_BY = "test_what_is_stored_is_seen_and_nothing_behind_it"
MESSAGE = "the last token is at length - 1"


@jit
def visible(positions, length, WINDOW: tl.constexpr):
    seen = positions < length - 1
    if WINDOW > 0:
        seen = seen & (positions >= length - WINDOW)
    return seen

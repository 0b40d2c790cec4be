"""The bound is the priority over the rate, as if the most urgent were always 0."""

CAUGHT_BY = "test_the_bound"
MESSAGE = "gap over the rate"


def aging_bound(priority, most_urgent, rate):
    return priority / rate if rate else float("inf")

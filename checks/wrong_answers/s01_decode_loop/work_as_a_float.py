"""The sum is halved with `/`: a count of tokens becomes a float, which is inexact from 2**53 on."""

CAUGHT_BY = "test_it_grows_with_the_square"
MESSAGE = "use //: a whole number"


def work_without_cache(prompt, new):
    return new * prompt + new * (new - 1) / 2

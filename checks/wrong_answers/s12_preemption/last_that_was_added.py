"""The last admitted is taken to be the last that was added. An evicted request, and one that waited, come in later than they were added."""

CAUGHT_BY = "test_the_last_admitted_is_not_the_last_that_was_added"
MESSAGE = "not by `add`"


def last_admitted(request):
    return -request.order

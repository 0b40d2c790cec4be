"""Who has been evicted before is spared. It sounds fair, but it is another rule: the last admitted goes, whatever happened to it."""

CAUGHT_BY = "test_the_last_admitted_is_not_the_last_that_was_added"
MESSAGE = "how often it was evicted before"


def last_admitted(request):
    return request.num_preemptions

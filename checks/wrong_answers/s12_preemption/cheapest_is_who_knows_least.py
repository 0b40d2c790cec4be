"""The cheapest victim is taken to be the shortest one: prompt and output. What it has not computed yet can't be lost."""

CAUGHT_BY = "test_cheapest_counts_what_is_stored"
MESSAGE = "what it has not computed can't be thrown away"


def cheapest_to_recompute(request):
    return request.num_tokens

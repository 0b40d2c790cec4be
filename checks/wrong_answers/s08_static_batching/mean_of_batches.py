"""The utilisation is the mean of the batches' utilisations, so that a long bad batch weighs as little as a short good one."""

CAUGHT_BY = "test_a_long_batch_weighs_more_than_a_short_one"
MESSAGE = "a mean of ratios forgets the weights"


def slot_utilisation(batches):
    ratios = [sum(batch) / (len(batch) * max(batch)) for batch in batches if any(batch)]
    return sum(ratios) / len(ratios) if ratios else 0.0

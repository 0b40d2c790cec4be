"""A slot that nobody took is left out of the count, though the server holds it as long as the others."""

CAUGHT_BY = "test_an_empty_slot_is_held_too"
MESSAGE = "a slot left empty is still a slot"


def slot_utilisation(batches):
    held = sum(sum(tokens > 0 for tokens in batch) * max(batch, default=0) for batch in batches)
    return sum(map(sum, batches)) / held if held else 0.0

"""Only generated tokens are counted as held."""

CAUGHT_BY = "test_the_prompt_is_stored_from_the_start"
MESSAGE = "the prompt's tokens are there"


def shares(running, num_slots):
    running = list(running)
    tokens = sum(request.made for request in running)
    reserved = sum(request.output - request.made for request in running)
    given = sum(request.size for request in running)
    external = num_slots - given
    return Shares(tokens / num_slots, reserved / num_slots, (given - tokens - reserved) / num_slots, external / num_slots)

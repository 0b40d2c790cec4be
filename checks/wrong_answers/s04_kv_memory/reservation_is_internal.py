"""Slots that wait for a later token are counted as never used: reservation and internal fragmentation are one."""

CAUGHT_BY = "test_half_way_through_an_answer"
MESSAGE = "5 are still to be made"


def shares(running, num_slots):
    running = list(running)
    tokens = sum(request.prompt + request.made for request in running)
    internal = sum(request.size for request in running) - tokens
    return Shares(tokens / num_slots, 0.0, internal / num_slots, (num_slots - tokens - internal) / num_slots)

"""The shares are taken of the slots that were handed out, so external fragmentation can not be seen."""

CAUGHT_BY = "test_requests_add_up"
MESSAGE = "the slots of the *memory*"


def shares(running, num_slots):
    running = list(running)
    given = sum(request.size for request in running) or 1
    tokens = sum(request.prompt + request.made for request in running)
    reserved = sum(request.output - request.made for request in running)
    return Shares(tokens / given, reserved / given, (given - tokens - reserved) / given, 0.0)

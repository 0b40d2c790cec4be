"""A call makes one token, so `new` calls compute prompt + new tokens: true with a KV cache, and there is none yet."""

CAUGHT_BY = "test_it_grows_with_the_square"
MESSAGE = "plus 0 + 1"


def work_without_cache(prompt, new):
    return prompt + new - 1 if new else 0

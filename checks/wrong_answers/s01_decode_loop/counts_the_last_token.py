"""The sum runs to `new`, as if the last token were fed to the model too."""

CAUGHT_BY = "test_the_first_token_costs_the_prompt"
MESSAGE = "its result is the first new token"


def work_without_cache(prompt, new):
    return new * prompt + new * (new + 1) // 2

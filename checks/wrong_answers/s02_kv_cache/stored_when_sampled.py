"""A token is thought to be stored when it is sampled, so the last one gets a slot too."""

CAUGHT_BY = "test_the_last_sampled_token_is_never_stored"
MESSAGE = "stored when fed"


def slots_needed(prompt, max_tokens):
    return prompt + max_tokens

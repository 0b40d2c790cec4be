"""All tokens are made first and handed over together: the result is right, and nobody sees a word before the end."""

CAUGHT_BY = "test_a_token_is_there_before_the_next_is_computed"
MESSAGE = "a list at the end is no stream"


def generate(model, prompt, max_tokens, sampling=GREEDY, rng=None):
    rng = rng or Random(0)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(sample(model.logits(tokens)[-1], sampling, rng))
        if tokens[-1] == model.eos_id:
            break
    return iter(tokens[len(prompt) :])

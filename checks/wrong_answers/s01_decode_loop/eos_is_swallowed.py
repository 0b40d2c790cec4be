"""The end token is no text, so the loop ends without yielding it: nobody can tell the end of a story from max_tokens."""

CAUGHT_BY = "test_it_ends_with_the_eos_token"
MESSAGE = "it is part of the output"


def generate(model, prompt, max_tokens, sampling=GREEDY, rng=None):
    rng = rng or Random(0)
    tokens = list(prompt)
    for _ in range(max_tokens):
        token = sample(model.logits(tokens)[-1], sampling, rng)
        if token == model.eos_id:
            return
        yield token
        tokens.append(token)

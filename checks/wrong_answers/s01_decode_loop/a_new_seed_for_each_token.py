"""Each token is drawn from a fresh random generator, so the same number comes up every time."""

CAUGHT_BY = "test_without_a_source_it_is_random_0"
MESSAGE = "made once"


def generate(model, prompt, max_tokens, sampling=GREEDY, rng=None):
    tokens = list(prompt)
    for _ in range(max_tokens):
        token = sample(model.logits(tokens)[-1], sampling, rng or Random(0))
        yield token
        if token == model.eos_id:
            return
        tokens.append(token)

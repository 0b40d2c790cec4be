"""The model is asked after the last token too, as if its scores were needed before one may stop."""

CAUGHT_BY = "test_the_last_token_is_never_fed"
MESSAGE = "there is nothing to ask"


def generate(model, prompt, max_tokens, sampling=GREEDY, rng=None):
    rng = rng or Random(0)
    tokens = list(prompt)
    logits = model.logits(tokens)
    for _ in range(max_tokens):
        token = sample(logits[-1], sampling, rng)
        yield token
        if token == model.eos_id:
            return
        tokens.append(token)
        logits = model.logits(tokens)

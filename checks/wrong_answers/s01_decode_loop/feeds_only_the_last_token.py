"""After the prompt the model is given the new token only, as if it remembered the rest. That is what the KV cache of s02 is for."""

CAUGHT_BY = "test_every_call_gets_all_tokens_so_far"
MESSAGE = "the model remembers nothing"


def generate(model, prompt, max_tokens, sampling=GREEDY, rng=None):
    rng = rng or Random(0)
    tokens = list(prompt)
    for _ in range(max_tokens):
        token = sample(model.logits(tokens)[-1], sampling, rng)
        yield token
        if token == model.eos_id:
            return
        tokens = [token]

"""The prompt is fed a token a pass, as decodes are: the same tokens come out, and a pass of one pays for the weights each time."""

CAUGHT_BY = "test_the_prompt_in_one_pass_then_a_token_a_pass"
MESSAGE = "pass 1 computes the prompt"


def generate(model, prompt, max_tokens, sampling=GREEDY, rng=None):
    rng = rng or Random(0)
    cache = KVCache(model.config, slots_needed(len(prompt), max_tokens), model.dtype)
    for token in prompt[:-1]:
        compute(model, cache, [token])
    new = prompt[-1:]
    for _ in range(max_tokens):
        token = sample(compute(model, cache, new), sampling, rng)
        yield token
        if token == model.eos_id:
            return
        new = [token]

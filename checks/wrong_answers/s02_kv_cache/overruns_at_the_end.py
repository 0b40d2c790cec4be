"""The cache is right, and the last token is computed into it all the same: the request fails when its text is complete."""

CAUGHT_BY = "test_the_prompt_in_one_pass_then_a_token_a_pass"
MESSAGE = "the last token is never computed"


def generate(model, prompt, max_tokens, sampling=GREEDY, rng=None):
    rng = rng or Random(0)
    cache = KVCache(model.config, slots_needed(len(prompt), max_tokens), model.dtype)
    scores = compute(model, cache, prompt)
    for _ in range(max_tokens):
        token = sample(scores, sampling, rng)
        yield token
        if token == model.eos_id:
            return
        scores = compute(model, cache, [token])

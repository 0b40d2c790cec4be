"""All tokens so far are fed at every pass, as in s01, and the cache is rewound to make room for them: nothing is saved."""

CAUGHT_BY = "test_the_prompt_in_one_pass_then_a_token_a_pass"
MESSAGE = "each later pass the token just sampled"


def generate(model, prompt, max_tokens, sampling=GREEDY, rng=None):
    rng = rng or Random(0)
    cache = KVCache(model.config, slots_needed(len(prompt), max_tokens), model.dtype)
    tokens = list(prompt)
    for _ in range(max_tokens):
        cache.length = 0
        token = sample(compute(model, cache, tokens), sampling, rng)
        yield token
        if token == model.eos_id:
            return
        tokens.append(token)

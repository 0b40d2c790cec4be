"""What is neither max nor pow2 is taken for the oracle, also a misspelt policy."""

CAUGHT_BY = "test_an_unknown_policy_is_refused"
MESSAGE = "must not fall through"


def reserve(policy, prompt, output, max_len):
    if prompt + output > max_len:
        raise BadConfig(f"{prompt} + {output} tokens exceed max_len {max_len}")
    if policy == "max":
        return max_len
    if policy == "pow2":
        return min(max_len, prompt + (1 << (output - 1).bit_length()))
    return prompt + output

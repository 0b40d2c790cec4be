"""The power of two is not cut to the context, so a request gets slots that no request can use."""

CAUGHT_BY = "test_pow2_never_exceeds_the_context"
MESSAGE = "more than max_len"


def reserve(policy, prompt, output, max_len):
    if prompt + output > max_len:
        raise BadConfig(f"{prompt} + {output} tokens exceed max_len {max_len}")
    if policy == "max":
        return max_len
    if policy == "pow2":
        return prompt + (1 << (output - 1).bit_length())
    if policy == "oracle":
        return prompt + output
    raise BadConfig(f"policy {policy!r} is unknown")

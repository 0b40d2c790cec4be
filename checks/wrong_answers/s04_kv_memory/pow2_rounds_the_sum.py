"""The power of two is taken of the whole request, prompt and output together."""

CAUGHT_BY = "test_pow2_rounds_the_output_up"
MESSAGE = "the prompt is known and is not rounded"


def reserve(policy, prompt, output, max_len):
    if prompt + output > max_len:
        raise BadConfig(f"{prompt} + {output} tokens exceed max_len {max_len}")
    if policy == "max":
        return max_len
    if policy == "pow2":
        return min(max_len, 1 << (prompt + output - 1).bit_length())
    if policy == "oracle":
        return prompt + output
    raise BadConfig(f"policy {policy!r} is unknown")

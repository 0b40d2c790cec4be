"""An output that is a power of two already is doubled."""

CAUGHT_BY = "test_a_power_of_two_stays_what_it_is"
MESSAGE = "4 stays 4"


def reserve(policy, prompt, output, max_len):
    if prompt + output > max_len:
        raise BadConfig(f"{prompt} + {output} tokens exceed max_len {max_len}")
    if policy == "max":
        return max_len
    if policy == "pow2":
        return min(max_len, prompt + (1 << output.bit_length()))
    if policy == "oracle":
        return prompt + output
    raise BadConfig(f"policy {policy!r} is unknown")

"""Outputs are taken to be what is stored behind the prompt. In mid-prompt that is below 0, and after an eviction too small."""

CAUGHT_BY = "test_outputs_are_counted_in_mid_prompt_too"
MESSAGE = "what is computed says nothing of outputs"


def fewest_outputs(request):
    return request.num_computed_tokens - len(request.prompt)

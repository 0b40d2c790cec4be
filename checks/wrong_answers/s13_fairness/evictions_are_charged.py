"""A tenant pays again for what the engine threw away and computes once more."""

CAUGHT_BY = "test_what_is_computed_again_was_paid_for"
MESSAGE = "an eviction is the engine's doing"


class FairShare:
    def charge(self, request):
        before, now, prompt = self._furthest.get(request, 0), request.num_computed_tokens, len(request.prompt)
        if now < before:
            before = 0
        outputs = max(now - prompt, 0) - max(before - prompt, 0)
        cost = now - before + (self.output_weight - 1) * outputs
        self.served[request.tenant] = self.served.get(request.tenant, 0) + cost
        self._furthest[request] = now

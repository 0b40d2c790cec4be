"""All tokens count alike. A tenant with short prompts and long answers gets more of the machine than its counter says."""

CAUGHT_BY = "test_an_output_counts_output_weight"
MESSAGE = "needs a step of its own"


class FairShare:
    def charge(self, request):
        before, now = self._furthest.get(request, 0), request.num_computed_tokens
        if now > before:
            self.served[request.tenant] = self.served.get(request.tenant, 0) + now - before
            self._furthest[request] = now

"""Each step charges all that a request has computed so far, not what is new."""

CAUGHT_BY = "test_chunks_add_up"
MESSAGE = "new since the last charge"


class FairShare:
    def charge(self, request):
        now, prompt = request.num_computed_tokens, len(request.prompt)
        outputs = max(now - prompt, 0)
        self.served[request.tenant] = self.served.get(request.tenant, 0) + now + (self.output_weight - 1) * outputs

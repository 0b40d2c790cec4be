"""The door compares the prompt with the budget. After an eviction a request comes back with its outputs, in one piece, and may have outgrown every step."""

CAUGHT_BY = "test_what_could_come_back_beyond_the_budget_is_refused"
MESSAGE = "count the outputs too"


class Scheduler:
    def add(self, request):
        config = self.config
        if request.id in self._live:
            raise DuplicateRequest(request.id)
        if config.max_model_len is not None:
            refuse_beyond(request.id, "rejected_len", len(request.prompt) + 1, config.max_model_len)
            request.max_tokens = min(request.max_tokens, config.max_model_len - len(request.prompt))
        if config.reject_unservable:
            slots = request.max_kv_slots
            refuse_beyond(request.id, "rejected_kv", blocks_needed(slots, config.block_size), config.usable_blocks)
            refuse_beyond(request.id, "rejected_budget", len(request.prompt), config.max_num_batched_tokens)
        request.order = self._added + 1
        if self.ttft_target_ms is not None:
            refuse_beyond(request.id, "rejected_slo", round(self.predict_ttft_ms(request)), round(self.ttft_target_ms))
        self._added = request.order
        self._live[request.id] = request
        self.waiting.push(request)

"""The rules of s11 to s13 a second time, as slowly and plainly as they can be written: lists, counts, no queues, no seams.

Written from the conventions of tests/data/field_cases.json and the rules of the course, not from the lessons' code, so that a
mistake there is not copied here. `replay(workload)` returns what kit.replay's `Result` holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

DEFAULTS: dict[str, Any] = {
    "max_model_len": None, "chunked_prefill": True, "prefill_first": False, "long_prefill_token_threshold": 0,
    "admission": "chunk", "skip_blocked": False, "cpu_blocks": 0, "policy": "fcfs", "preempt_for_priority": False,
    "aging_per_step": 0, "reject_unservable": True, "allow_small_budget": False, "max_steps": 300, "watermark_blocks": 0,
}  # fmt: skip


@dataclass(eq=False)
class Job:
    id: str
    prompt: int
    max_tokens: int
    arrival: int
    priority: int
    eos_at: int
    order: int = 0
    outputs: int = 0
    computed: int = 0
    blocks: int = 0  # on the GPU
    cpu_blocks: int = 0
    row: dict[str, Any] = field(default_factory=dict)

    @property
    def gap(self) -> int:
        return self.prompt + self.outputs - self.computed


def blocks_for(tokens: int, size: int) -> int:
    return (tokens + size - 1) // size


class Model:
    """One engine. `running` in order of admission, `waiting` in order of service, both plain lists."""

    def __init__(self, config: dict[str, Any]):
        self.c: dict[str, Any] = {**DEFAULTS, **config}
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.added = 0
        self.tokens: dict[Job, int] = {}
        self.evicted: list[Job] = []  # in this step, for memory
        self.copied_in = False  # in this step, from the CPU: copies out come first, so nobody is copied out after that

    # What is counted, never kept

    def free(self) -> int:
        return self.c["num_blocks"] - sum(job.blocks for job in self.running)

    def cpu_free(self) -> int:
        return self.c["cpu_blocks"] - sum(job.cpu_blocks for job in self.waiting)

    def more(self, job: Job, tokens: int) -> int:
        """Blocks that it lacks on the GPU to hold so many tokens in all."""
        return max(0, blocks_for(tokens, self.c["block_size"]) - job.blocks)

    # The door

    def add(self, job: Job) -> str | None:
        """Why it is refused, or None."""
        c = self.c
        if c["max_model_len"] is not None:
            if job.prompt >= c["max_model_len"]:
                return "rejected_len"
            job.max_tokens = min(job.max_tokens, c["max_model_len"] - job.prompt)
        slots = job.prompt + job.max_tokens - 1
        if c["reject_unservable"]:
            if blocks_for(slots, c["block_size"]) > c["num_blocks"] - c["watermark_blocks"]:
                return "rejected_kv"
            if not c["chunked_prefill"] and slots > c["max_num_batched_tokens"]:
                return "rejected_budget"
        self.added += 1
        job.order = self.added
        self.waiting.append(job)
        self.sort()
        return None

    def key(self, job: Job) -> tuple[Any, ...]:
        if self.c["policy"] == "shortest":
            return (job.prompt, job.arrival, job.order)
        rate = Decimal(str(self.c["aging_per_step"]))
        return (job.priority + rate * job.arrival, job.arrival, job.order)  # less rate * now, which all share

    def sort(self) -> None:
        """First come first served keeps its order by itself: who arrives goes to the end, who is evicted to the front."""
        if self.c["policy"] != "fcfs":
            self.waiting.sort(key=self.key)
        if (
            self.c["preempt_for_priority"] and self.c["policy"] == "priority"
        ):  # a swapped request goes before others of its own (aged) priority only
            self.waiting.sort(key=lambda job: (self.key(job)[0], not job.cpu_blocks))
        else:
            self.waiting.sort(key=lambda job: not job.cpu_blocks)

    # One step

    def schedule(self) -> None:
        c = self.c
        self.tokens, self.evicted, self.left = {}, [], c["max_num_batched_tokens"]
        self.copied_in = False
        if not c["prefill_first"]:
            self.serve(list(self.running))
            self.admit()
            return
        decoding = [job for job in self.running if job.outputs and job.gap == 1]
        self.serve([job for job in self.running if job not in decoding])
        self.admit()
        if not self.tokens:
            self.serve([job for job in decoding if job in self.running])

    def chunk(self, job: Job) -> int:
        """min(gap, budget left, threshold); the threshold not for a lone request."""
        limits = [job.gap, self.left]
        if not self.c["chunked_prefill"]:
            return job.gap if job.gap <= self.left else 0
        if self.c["long_prefill_token_threshold"] and len(self.running) + len(self.waiting) > 1:
            limits.append(self.c["long_prefill_token_threshold"])
        return min(limits)

    def serve(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job not in self.running:
                continue
            n = self.chunk(job)
            if n == 0:
                return
            while job in self.running and self.more(job, job.computed + n) > self.free():
                victim = self.victim()
                self.evict(victim)
                self.evicted.append(victim)
            if job in self.running:
                self.compute(job, n)

    def victim(self) -> Job:
        return max(self.running, key=self.key) if self.c["policy"] == "priority" else self.running[-1]

    def evict(self, job: Job) -> None:
        back = self.tokens.pop(job, 0)
        self.left += back
        job.computed -= back
        self.running.remove(job)
        stored = blocks_for(job.computed, self.c["block_size"])
        if 0 < stored <= self.cpu_free() and not self.copied_in:
            job.cpu_blocks = stored
        else:
            job.row["recomputed_tokens"] += job.computed
            job.computed = 0
        job.blocks = 0
        job.row["preemptions"] += 1
        self.waiting.insert(0, job)
        self.sort()

    def compute(self, job: Job, n: int) -> None:
        job.blocks += self.more(job, job.computed + n)
        job.computed += n
        self.left -= n
        self.tokens[job] = n

    def gate(self, job: Job, chunk: int, running: list[Job]) -> int:
        """Blocks that must be free for it to join `running`."""
        if self.c["admission"] == "chunk":
            return self.more(job, job.computed + chunk)
        if self.c["admission"] == "full_prompt":
            return self.more(job, job.prompt + job.outputs)
        size = self.c["block_size"]
        return sum(blocks_for(one.prompt + one.max_tokens - 1, size) - one.blocks for one in [*running, job])

    def fits(self, job: Job, without: Job | None = None) -> str:
        """What it lacks to join, if anything: "budget" or "blocks"."""
        running = [one for one in self.running if one is not without]
        free = self.free() + (without.blocks if without else 0) - self.c["watermark_blocks"]
        left = self.left + (self.tokens.get(without, 0) if without else 0)
        saved, self.left = self.left, left
        chunk = self.chunk(job)
        self.left = saved
        if chunk == 0:
            return "budget"
        return "blocks" if self.gate(job, chunk, running) > free else ""

    def admit(self) -> None:
        if self.evicted:
            return
        for job in list(self.waiting):
            if len(self.running) >= self.c["max_num_seqs"]:
                if self.c["preempt_for_priority"]:
                    self.take_a_seat(job)
                return
            lacks = self.fits(job)
            if not lacks:
                self.join(job)
            elif not self.c["skip_blocked"] or lacks == "budget" or job.cpu_blocks:
                return

    def take_a_seat(self, job: Job) -> None:
        victim = max(self.running, key=lambda one: (one.priority, one.arrival, one.order))
        if victim.priority > job.priority and not self.fits(job, without=victim):
            self.evict(victim)
            self.join(job)

    def join(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        if job.cpu_blocks:
            job.blocks, job.cpu_blocks, self.copied_in = job.cpu_blocks, 0, True
        else:
            job.row["prefix_hit_tokens_at_admission"].append(0)
        self.compute(job, self.chunk(job))

    def drop(self, job: Job, reason: str, step: int) -> None:
        for queue in (self.running, self.waiting):
            if job in queue:
                queue.remove(job)
        job.blocks = job.cpu_blocks = 0
        job.row["finish_reason"], job.row["finish_step"] = reason, step


def replay(workload: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """(requests, totals, schedule) of a workload, as in kit.replay."""
    model = Model(workload["config"])
    jobs = []
    for entry in workload["requests"]:
        job = Job(entry["id"], entry["prompt_len"], entry["max_tokens"], entry.get("arrival", 0), entry.get("priority", 0),
                  entry.get("eos_at") or 0)  # fmt: skip
        job.row = {
            "first_token_step": None, "finish_step": None, "finish_reason": None, "output_tokens": 0, "preemptions": 0,
            "recomputed_tokens": 0, "prefix_hit_tokens_at_admission": [],
        }  # fmt: skip
        jobs.append(job)
    coming = sorted(jobs, key=lambda job: job.arrival)
    schedule: list[dict[str, Any]] = []
    idle, end = 0, ""
    while not end:
        step = len(schedule)
        while coming and coming[0].arrival <= step:
            job = coming.pop(0)
            if reason := model.add(job):
                job.row["finish_reason"], job.row["finish_step"] = reason, step
        for abort in workload.get("aborts", []):
            for job in model.running + model.waiting:
                if abort["step"] == step and abort["id"] == job.id:
                    model.drop(job, "abort", step)
        if not (coming or model.waiting or model.running):
            end = "done"
            break
        if step == model.c["max_steps"]:
            end = "max"
            break
        model.schedule()
        computed = {job.id: n for job, n in model.tokens.items()}
        for job in model.tokens:
            if job.gap == 0:
                job.outputs += 1
                job.row["output_tokens"] += 1
                if job.row["first_token_step"] is None:
                    job.row["first_token_step"] = step
                if job.eos_at == job.outputs:
                    model.drop(job, "stop", step)
                elif job.outputs >= job.max_tokens:
                    model.drop(job, "length", step)
        schedule.append({"step": step, "tokens": computed, "free_blocks": model.free()})
        idle = idle + 1 if model.waiting and not computed else 0
        end = "stuck" if idle == 6 else ""
    totals = {
        "end": end,
        "steps": len(schedule),
        "preemptions": sum(job.row["preemptions"] for job in jobs),
        "free_blocks_at_end": model.free(),
    }
    return {job.id: job.row for job in jobs}, totals, schedule

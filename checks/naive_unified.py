"""The rules R0 to R9 a second time, as slowly and plainly as they can be written, and random workloads to try them on.

Written from the observed rules alone, not from s14's code, so that a mistake there is not copied here: blocks know all the
tokens from the start of their request, searches go through everything, nothing is kept that can be looked up.
"""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Any


def token(tokens: list[int]) -> int:
    h = 7 * len(tokens)
    for t in tokens[-4:]:
        h = (h * 31 + t + 1) % 1_000_003
    return h % 1000


class Job:
    def __init__(self, entry: dict[str, Any], nth: int):
        self.id, self.prompt = entry["id"], list(entry["prompt"])
        self.arrival, self.max_tokens, self.priority = entry["arrival"], entry["max_tokens"], entry.get("priority", 0)
        self.stops, self.nth = entry.get("stop_token_ids") or [], nth
        self.output: list[int] = []
        self.computed = self.preempted = 0
        self.table: list[int] = []

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)


class Machine:
    def __init__(self, workload: dict[str, Any]):
        c = self.c = workload["config"]
        self.size, self.longest = c["block_size"], c["max_model_len"]
        self.usable = c["num_gpu_blocks"] - 1
        self.owners = [0] * self.usable
        self.content: list[tuple[int, ...] | None] = [None] * self.usable
        self.free = list(range(self.usable))
        self.cached: list[int] = []  # blocks with content, in the order in which they got it
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.by_priority = c["policy"] == "priority"
        jobs = [Job(entry, i) for i, entry in enumerate(workload["requests"])]
        self.jobs = sorted(jobs, key=lambda job: (job.arrival, job.nth))
        for i, job in enumerate(self.jobs):
            job.nth = i
        self.aborts = workload.get("aborts", [])

    # Blocks

    def give_back(self, job: Job) -> None:
        front, back = [], []
        for block in reversed(job.table):
            self.owners[block] -= 1
            if self.owners[block] == 0:
                (front if self.content[block] is None else back).append(block)
        self.free = front + self.free + back
        job.table = []

    def take(self, job: Job, blocks: int) -> None:
        for _ in range(blocks):
            block = self.free.pop(0)
            if self.content[block] is not None:
                self.content[block] = None
                self.cached.remove(block)
            self.owners[block] = 1
            job.table.append(block)

    def name(self, job: Job, upto: int) -> None:
        if self.c["enable_prefix_caching"]:
            for i in range(min(upto, job.known) // self.size):
                block = job.table[i]
                if self.content[block] is None:
                    self.content[block] = tuple(job.tokens[: (i + 1) * self.size])
                    self.cached.append(block)

    def find(self, job: Job) -> list[int]:
        hit: list[int] = []
        while self.c["enable_prefix_caching"] and len(hit) < (job.known - 1) // self.size:
            wanted = tuple(job.tokens[: (len(hit) + 1) * self.size])
            block = next((block for block in self.cached if self.content[block] == wanted), None)
            if block is None:
                break
            hit.append(block)
        return hit

    # One step

    def threshold(self, n: int) -> int:
        limit = self.c["long_prefill_token_threshold"]
        return min(n, limit) if limit and len(self.running) + len(self.waiting) > 1 else n

    def place(self, job: Job) -> tuple[float, int]:
        return (job.priority, job.nth)

    def requeue(self, job: Job) -> None:
        if self.by_priority:
            self.waiting.append(job)
            self.waiting.sort(key=self.place)
        else:
            self.waiting.insert(0, job)

    def schedule(self) -> dict[str, Any]:
        budget = self.c["max_num_batched_tokens"]
        sched: dict[Job, int] = {}
        entry: dict[str, Any] = {"new": [], "res": [], "pre": []}
        cursor = 0
        while cursor < len(self.running) and budget > 0:
            job = self.running[cursor]
            n = min(self.threshold(job.known - job.computed), budget, self.longest - job.computed - 1)
            if n == 0:
                cursor += 1
                continue
            went = False
            while ceil(min(job.computed + n, self.longest) / self.size) - len(job.table) > len(self.free):
                victim = max(self.running, key=self.place) if self.by_priority else self.running[-1]
                if self.running.index(victim) < cursor:
                    cursor -= 1
                self.running.remove(victim)
                budget += sched.pop(victim, 0)
                self.give_back(victim)
                victim.computed, victim.preempted = 0, victim.preempted + 1
                self.requeue(victim)
                entry["pre"].append(victim.id)
                if victim is job:
                    went = True
                    break
            if went:
                if self.by_priority:
                    continue
                break
            self.take(job, max(ceil(min(job.computed + n, self.longest) / self.size) - len(job.table), 0))
            self.name(job, job.computed + n)
            sched[job] = n
            budget -= n
            cursor += 1
        while not entry["pre"] and self.waiting and budget > 0 and len(self.running) < self.c["max_num_seqs"]:
            job = self.waiting[0]
            hit = self.find(job)
            n = self.threshold(job.known - len(hit) * self.size)
            if n > budget and not self.c["enable_chunked_prefill"]:
                break
            n = min(n, budget)
            spare = len(self.free) - (int(self.c["watermark"] * self.c["num_gpu_blocks"]) if self.running else 0)
            idle = sum(self.owners[block] == 0 for block in hit)
            upto = min(len(hit) * self.size + n, self.longest)
            whole = min(job.known, self.longest) if self.c["scheduler_reserve_full_isl"] else upto
            if max(max(ceil(end / self.size) for end in (whole, upto)) - len(hit), 0) + idle > spare:
                break
            for block in hit:
                if self.owners[block] == 0:
                    self.free.remove(block)
                self.owners[block] += 1
            job.table = list(hit)
            self.take(job, ceil(upto / self.size) - len(hit))
            self.name(job, upto)
            self.running.append(self.waiting.pop(0))
            job.computed = len(hit) * self.size
            entry["res" if job.preempted else "new"].append([job.id, job.computed])
            sched[job] = n
            budget -= n
        for job, n in sched.items():
            job.computed += n
        self.sched = sched
        return {"sched": [[job.id, n] for job, n in sched.items()], **entry}

    def update(self) -> list[list[str]]:
        finished = []
        for job in self.sched:
            if job not in self.running or job.computed != job.known:
                continue
            job.output.append(token(job.tokens))
            why = "stopped" if job.output[-1] in job.stops else ""
            if not why and (job.known >= self.longest or len(job.output) >= job.max_tokens):
                why = "length_capped"
            if why:
                finished.append([job.id, why])
                self.running.remove(job)
                self.give_back(job)
        return finished

    def abort(self, name: str) -> list[Any]:
        before = len(self.free)
        state = "gone"
        for job in list(self.running):
            if job.id == name:
                state = "prefill" if job.computed < len(job.prompt) else "running"
                self.running.remove(job)
                self.give_back(job)
        for job in list(self.waiting):
            if job.id == name:
                state = "preempted" if job.preempted else "waiting"
                self.waiting.remove(job)
        return [name, state, len(self.free) - before]

    def replay(self) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
        steps, step, left = [], 0, list(self.jobs)
        while left or self.waiting or self.running:
            if not self.waiting and not self.running:
                step = max(step, left[0].arrival)
            entry: dict[str, Any] = {"step": step, "add": []}
            while left and left[0].arrival <= step:
                entry["add"].append(left[0].id)
                self.waiting.append(left.pop(0))
            if self.by_priority:
                self.waiting.sort(key=self.place)
            due = [(a["id"], a.get("when", "before")) for a in self.aborts if a["step"] == step]
            entry["abort"] = [self.abort(name) for name, when in due if when == "before"]
            entry |= self.schedule()
            free = [len(self.free)]
            entry["abort_mid"] = [self.abort(name) for name, when in due if when == "mid"]
            entry["fin"] = self.update()
            free.append(len(self.free))
            entry |= {"free_s": free[0], "free_u": free[1]} if self.aborts else {"free": free}
            entry |= {"run": [job.id for job in self.running], "wait": [job.id for job in self.waiting]}
            always = ("step", "sched", "run", "wait")
            steps.append({key: value for key, value in entry.items() if value != [] or key in always})
            step += 1
        return steps, {job.id: job.output for job in self.jobs}


# Random workloads ----------------------------------------------------------------------------------------------------

FAMILIES = (
    "plain", "tight", "tight_cache", "chunk", "threshold", "nochunk", "prefix", "prefix_tight", "priority", "priority_tight",
    "priority_cache", "tiny_budget", "burst", "maxlen", "stop", "watermark", "watermark_idle", "no_reserve", "mixed", "aborts",
)  # fmt: skip


def workload(family: str, seed: int) -> dict[str, Any]:
    """A workload of a family, each of which presses on something; the same seed gives the same one."""
    rng = Random(f"{family}-{seed}")
    mixed = family in ("mixed", "aborts")

    def on(*families: str, chance: float = 0.5) -> bool:
        return family in families or (mixed and rng.random() < chance)

    size = rng.choice((1, 2, 4, 8, 16))
    longest = rng.choice((32, 48, 64, 96))
    least = ceil(longest / size)
    tight = on("tight", "tight_cache", "prefix_tight", "priority_tight", "priority_cache", "watermark", "no_reserve")
    pool = least + (rng.randint(0, max(1, least // 2)) if tight else rng.randint(least, 4 * least))
    chunked = not on("nochunk", chance=0.1)
    seats = rng.choice((8, 16) if family == "burst" else (3, 4, 8, 16) if tight else (1, 2, 3, 4, 8, 16))
    budget = rng.choice((16, 24, 32, 64, 128))
    if on("tiny_budget", "chunk", chance=0.2):
        budget = rng.randint(2, 16)
    budget = max(budget, seats, 0 if chunked else longest)
    threshold = rng.choice((1, 2, 3, 4, 8)) if chunked and on("threshold", chance=0.4) else 0
    priority = on("priority", "priority_tight", "priority_cache")
    caching = on("tight_cache", "prefix", "prefix_tight", "priority_cache") or (not mixed and rng.random() < 0.5)
    watermark = rng.choice((0.01, 0.05, 0.1, 0.25, 0.5)) if on("watermark", "watermark_idle", chance=0.3) else 0.0
    config = {
        "max_num_seqs": seats, "max_num_batched_tokens": budget, "block_size": size, "num_gpu_blocks": pool + 1,
        "max_model_len": longest, "long_prefill_token_threshold": threshold, "enable_chunked_prefill": chunked,
        "enable_prefix_caching": caching, "policy": "priority" if priority else "fcfs", "watermark": watermark,
        "scheduler_reserve_full_isl": not on("no_reserve", chance=0.3),
    }  # fmt: skip
    vocabulary = rng.choice((2, 1000))
    roots = [[rng.randrange(vocabulary) for _ in range(longest)] for _ in range(3)]
    requests, now = [], rng.randint(0, 3)
    for i in range(rng.randint(3, 16)):
        length = rng.randint(1, longest // 2 if tight else longest - 1)
        cut = rng.randint(0, length) if caching else 0
        prompt = rng.choice(roots)[:cut] + [rng.randrange(vocabulary) for _ in range(length - cut)]
        most = rng.randint(1, 40) if family in ("maxlen", "stop") else rng.randint(1, max(1, min(40, longest - length)))
        entry: dict[str, Any] = {"id": f"r{i}", "arrival": now, "prompt": prompt, "max_tokens": most}
        if priority:
            entry["priority"] = rng.randint(0, 4)
        if on("stop", chance=0.3):
            entry["stop_token_ids"] = [rng.randrange(1000) for _ in range(rng.choice((20, 100)))]
        requests.append(entry)
        if family != "burst":
            now += rng.choice((0, 0, 0, 1, 1, 2) if tight else (0, 0, 1, 1, 2, 5, 40))
    found: dict[str, Any] = {"name": f"{family}-{seed}", "family": family, "config": config, "requests": requests}
    if family == "aborts":
        names = [*(entry["id"] for entry in requests), "nobody"]
        found["aborts"] = [
            {"id": rng.choice(names), "step": rng.randint(0, now + 60), **({"when": "mid"} if rng.random() < 0.4 else {})}
            for _ in range(rng.randint(1, 8))
        ]
    return found

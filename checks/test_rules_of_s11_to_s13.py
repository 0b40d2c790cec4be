"""The schedulers of s11 to s13 decide what a second, naive reading of the rules decides: checks/naive.py, on thousands of tight loads.

A longer run: python checks/test_rules_of_s11_to_s13.py 100000 [first seed]
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter

import naive
import pytest
from place import ROOT

sys.path.insert(0, str(ROOT / "solutions"))

from kit.replay import replay
from kit.workloads import read_workloads
from s11_chunked_prefill import ChunkedScheduler
from s12_preemption import SwappingScheduler
from s13_fairness import FairScheduler

SCHEDULERS = {"s11": ChunkedScheduler, "s12": SwappingScheduler, "s13": FairScheduler}
LOADS = 3000  # a lesson: a few seconds in all
FIELD_CASES = {
    name: case
    for name, case in read_workloads(ROOT / "tests" / "data" / "field_cases.json")
    if "config" in case and case["scheduler"] <= "s13"
}


def load(seed, lesson):
    """A small and tight workload with any option that the lesson has."""
    at_random = random.Random(f"{lesson} {seed}")
    pick, below = at_random.choice, at_random.randrange
    blocks, size, seats = 2 + below(9), pick((1, 2, 3, 4)), 1 + below(5)
    chunked = at_random.random() < 0.75
    budget = seats + below(12) if chunked else seats + 4 + below(24)
    config = {
        "num_blocks": blocks,
        "block_size": size,
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "watermark": pick((0, 0, 0, 0.1, 0.2, 0.3)),
        "policy": pick(("fcfs", "fcfs", "shortest", "priority", "priority")),
        "chunked_prefill": chunked,
        "prefill_first": at_random.random() < 0.2,
        "admission": pick(("chunk", "full_prompt")),
        "max_steps": 3000,
    }
    if at_random.random() < 0.1:
        config.update(max_num_batched_tokens=1 + below(seats), allow_small_budget=True)
    if chunked and at_random.random() < 0.3:
        config["long_prefill_token_threshold"] = 1 + below(6)
    if at_random.random() < 0.2:
        config["max_model_len"] = 6 + below(14)
    if lesson >= "s12" and at_random.random() < 0.6 and not config["prefill_first"]:
        config["cpu_blocks"] = 1 + below(8)
    if lesson >= "s13":
        config["admission"] = pick(("chunk", "full_prompt", "to_completion"))
        config["skip_blocked"] = at_random.random() < 0.3
        config["preempt_for_priority"] = at_random.random() < 0.6  # of any policy: seats are taken by raw priority
        if at_random.random() < (0.8 if config["policy"] == "priority" else 0.2):  # elsewhere it has no effect
            config["aging_per_step"] = pick((0, 0, 0.1, 0.2, 0.3, 0.5, 1, 1.1, 2.7))
    longest = max(1, blocks * size * 2 // 3)
    requests = [
        {
            "id": f"r{i}",
            "arrival": pick((0, below(4), below(30), 10 * below(4))),
            "prompt_len": 1 + below(longest),
            "max_tokens": 1 + below(8),
            "priority": below(4),
            "eos_at": pick((0, 0, 0, 1 + below(6))),
        }
        for i in range(2 + below(9))
    ]
    aborts = [{"id": pick(requests)["id"], "step": below(25)} for _ in range(pick((0, 0, 1, 3)))]
    return {"config": config, "requests": requests, "aborts": aborts}


def as_told(workload):
    """The workload with its watermark in whole blocks, which is all that the naive model knows."""
    config = dict(workload["config"])
    config["watermark_blocks"] = round(10 * config.pop("watermark", 0)) * config["num_blocks"] // 10
    return {**workload, "config": config}


def difference(workload, lesson):
    """What the two say differently about a workload, in a sentence; None if they agree to the token."""
    machines = []
    ours = replay(workload, lambda config: machines.append(SCHEDULERS[lesson](config)) or machines[-1], lesson)
    requests, totals, schedule = naive.replay(as_told(workload))
    for mine, told in zip(ours.schedule, schedule):
        if mine != told or list(mine["tokens"]) != list(told["tokens"]):
            return f"{lesson} decides {mine}, the rules say {told}"
    for id, row in requests.items():
        if row != ours.requests[id]:
            return f"{lesson} says of {id} {ours.requests[id]}, the rules say {row}"
    if totals != ours.totals:
        return f"{lesson} ends with {ours.totals}, the rules with {totals}"
    if ours.totals["end"] != "done":
        return f"{lesson} accepted what it does not finish: {ours.totals}"
    machine = machines[0]
    if getattr(machine, "cpu_pool", None) is not None and machine.cpu_pool.num_free != machine.config.cpu_blocks:
        return f"{lesson} lost CPU blocks: {machine.cpu_pool.num_free} of {machine.config.cpu_blocks} are free"
    return None


@pytest.mark.parametrize("name", FIELD_CASES)
def test_the_naive_model_gives_the_numbers_of_the_field_cases(name):
    case = FIELD_CASES[name]
    requests, totals, schedule = naive.replay(as_told({**case, "requests": [{"prompt_len": len(one.get("prompt", "")), **one}
                                                                            for one in case["requests"]]}))  # fmt: skip
    expect = case["expect"]
    assert {id: requests[id] for id in expect["requests"]} == expect["requests"]
    assert totals == {key: expect[key] for key in totals}
    assert schedule[: len(expect.get("schedule", []))] == expect.get("schedule", [])


@pytest.mark.parametrize("lesson", SCHEDULERS)
def test_every_decision_is_that_of_the_naive_model(lesson):
    for seed in range(LOADS):
        said = difference(load(seed, lesson), lesson)
        assert said is None, f"load {seed}: {said}\n{json.dumps(load(seed, lesson))}"


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3])
def test_priorities_that_meet_by_aging_are_equal_to_the_last_digit(rate):
    """Behind one that holds the only seat for 45 steps: in floats 0 + 0.3 * 10 and 3 + 0.3 * 0 are equal, 1 + 0.1 * 20 and 0 + 0.1 * 30 not."""
    config = {"num_blocks": 60, "block_size": 1, "max_num_seqs": 1, "max_num_batched_tokens": 4, "max_steps": 999}
    config.update(policy="priority", aging_per_step=rate)
    seat = {"id": "seat", "prompt_len": 1, "max_tokens": 45, "priority": -9}
    others = [{"id": f"{priority}@{arrival}", "arrival": arrival, "prompt_len": 1, "max_tokens": 1, "priority": priority}
              for priority in range(5) for arrival in range(1, 45)]  # fmt: skip
    assert difference({"config": config, "requests": [seat, *others]}, "s13") is None


def main(loads, first=0):
    """Count what differs, by the options of the load, and print the first few."""
    began, found, options = time.perf_counter(), Counter(), Counter()
    for lesson in SCHEDULERS:
        for seed in range(first, first + loads):
            workload = load(seed, lesson)
            said = difference(workload, lesson)
            if said is not None:
                found[lesson] += 1
                config = workload["config"]
                on = " ".join(key for key, value in config.items() if value is True)
                options[f"{lesson} {config['policy']} {config['admission']} {on}"] += 1
                if found[lesson] <= 3:
                    print(f"load {seed}: {said}\n{json.dumps(workload)}\n")
    print(
        f"{loads:,} loads for each of {len(SCHEDULERS)} lessons in {time.perf_counter() - began:.0f} s; differences: {dict(found)}"
    )
    for key, n in options.most_common(20):
        print(n, key)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

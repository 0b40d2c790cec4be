"""kit as a library: what is wrong is refused with a typed ValueError that has the numbers, and nothing is lost by it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from place import ROOT, python

REFUSED = [  # (expression, error, words)
    ("Config(max_num_batched_tokens=0)", "BadConfig", "max_num_batched_tokens 0"),
    ("Config(max_num_batched_tokens=-3)", "BadConfig", "-3"),
    ("Config(max_num_batched_tokens=2.5)", "BadConfig", "2.5"),
    ("Config(max_num_batched_tokens=True)", "BadConfig", "True"),
    ("Config(max_num_batched_tokens=4, max_num_seqs=8)", "BadConfig", "4 8"),
    ("Config(num_blocks=0)", "BadConfig", "num_blocks 0"),
    ("Config(block_size=0)", "BadConfig", "block_size 0"),
    ("Config(watermark=1)", "BadConfig", "watermark 1"),
    ("Config(watermark=float('nan'))", "BadConfig", "watermark nan"),
    ("Config(policy='random')", "BadConfig", "random fcfs shortest priority"),
    ("Config(chunked_prefill='yes')", "BadConfig", "chunked_prefill yes true false"),
    ("Config(prefill_first=1)", "BadConfig", "prefill_first 1 true false"),
    ("Config(long_prefill_token_threshold=-1)", "BadConfig", "long_prefill_token_threshold -1 0"),
    ("Config(long_prefill_token_threshold=1.5)", "BadConfig", "long_prefill_token_threshold 1.5"),
    ("Config(long_prefill_token_threshold=True)", "BadConfig", "long_prefill_token_threshold True"),
    ("Config(long_prefill_token_threshold=20, max_model_len=16)", "BadConfig", "20 beyond max_model_len 16 Lower"),
    ("Config(admission='all')", "BadConfig", "admission all chunk full_prompt to_completion"),
    ("Config(admission=None)", "BadConfig", "admission None chunk"),
    ("Config(cpu_blocks=-1)", "BadConfig", "cpu_blocks -1 0"),
    ("Config(cpu_blocks='4')", "BadConfig", "cpu_blocks '4'"),
    ("Config(cpu_blocks=10**9)", "BadConfig", "cpu_blocks 1000000000 100,000,000"),
    ("Config(skip_blocked='no')", "BadConfig", "skip_blocked no true false"),
    ("Config(policy='priority', preempt_for_priority=2)", "BadConfig", "preempt_for_priority 2 true false"),
    ("Config(prefill_first=True, cpu_blocks=4)", "BadConfig", "prefill_first cpu_blocks 4 admits prompts"),
    ("Config(policy='priority', aging_per_step=-0.1)", "BadConfig", "aging_per_step -0.1 0"),
    ("Config(policy='priority', aging_per_step='0.1')", "BadConfig", "aging_per_step '0.1'"),
    ("Config(policy='priority', aging_per_step=True)", "BadConfig", "aging_per_step True"),
    ("Config(policy='priority', aging_per_step=float('nan'))", "BadConfig", "aging_per_step nan"),
    ("Config(policy='priority', aging_per_step=float('inf'))", "BadConfig", "aging_per_step inf"),
    ("Config(aging_per_step=1e308)", "BadConfig", "aging_per_step 1e+308 1e-15 1e+09"),
    ("Config(policy='priority', aging_per_step=1e-320)", "BadConfig", "aging_per_step 1e-320 1e-15 1e+09"),
    ("Config(aging_per_step=10**400)", "BadConfig", "aging_per_step 1000 1e+09"),
    ("ChunkedScheduler(Config(cpu_blocks=4))", "BadConfig", "cpu_blocks 4 s11 ignore s12 s13"),
    ("ChunkedScheduler(Config(admission='to_completion'))", "BadConfig", "admission to_completion s11 ignore s13"),
    ("SwappingScheduler(Config(skip_blocked=True))", "BadConfig", "skip_blocked True s12 ignore s13"),
    ("SwappingScheduler(Config(preempt_for_priority=True))", "BadConfig", "preempt_for_priority s12 ignore s13"),
    ("FairScheduler(Config(prefix_caching=True))", "BadConfig", "prefix_caching s13 ignore s14"),
    ("UnifiedScheduler(Config(policy='shortest'))", "BadConfig", "policy shortest s14 ignore s10 s13"),
    ("UnifiedScheduler(Config(prefill_first=True))", "BadConfig", "prefill_first s14 ignore s11 s13"),
    ("UnifiedScheduler(Config(cpu_blocks=4))", "BadConfig", "cpu_blocks 4 s14 ignore"),
    ("UnifiedScheduler(Config(skip_blocked=True))", "BadConfig", "skip_blocked s14 ignore"),
    ("UnifiedScheduler(Config(preempt_for_priority=True))", "BadConfig", "preempt_for_priority s14 ignore"),
    ("UnifiedScheduler(Config(admission='to_completion'))", "BadConfig", "admission to_completion s14 ignore s13"),
    ("UnifiedScheduler(Config(policy='priority', aging_per_step=1))", "BadConfig", "aging_per_step s14 ignore s13"),
    ("Config.from_dict({'cpu_block': 3})", "BadConfig", "cpu_block cpu_blocks"),
    ("Config.from_dict({'max_num_seq': 3})", "BadConfig", "max_num_seq max_num_seqs"),
    ("Request('r', [], 3)", "BadRequest", "r prompt"),
    ("Request('r', [1], 0)", "BadRequest", "r max_tokens 0"),
    ("Request('r', [1], 1.5)", "BadRequest", "r 1.5"),
    ("Request('r', [1], 1, arrival_ns=-1)", "BadRequest", "r -1"),
    ("Request('r', [1], 1, priority=float('nan'))", "BadRequest", "r nan"),
    ("Request('r', [1], 1, priority=float('inf'))", "BadRequest", "r inf"),
    ("Request('r', [1], 1, priority=10**400)", "BadRequest", "r 1,000,000,000,000,000"),
    ("Request('r', [1, -7], 1)", "BadRequest", "r -7 token"),
    ("Request('r', [1, 2**63], 1)", "BadRequest", "r 9223372036854775808 token"),
    ("StaticBatcher(0)", "BadConfig", "max_num_seqs 0"),
    ("ContinuousBatcher(-1)", "BadConfig", "max_num_seqs -1"),
    ("tiny(4, 8).add(Request('r', range(17), 1))", "RequestRefused", "r 5 4"),
    ("tiny(9, 8).add(Request('r', range(9), 1))", "RequestRefused", "r 9 8"),
    ("tiny(9, 8).add(Request('r', range(2), 8))", "RequestRefused", "r 9 8"),
    ("tiny(9, 8, max_model_len=6).add(Request('r', range(6), 1))", "RequestRefused", "r 7 6"),
    ("twice(tiny(9, 8))", "DuplicateRequest", "r"),
]
SCRIPT = """
import json, sys
sys.path.insert(0, "solutions")
from kit.config import Config
from kit.errors import CourseError
from kit.request import Request
from s08_static_batching import StaticBatcher, Engine
from s09_continuous_batching import ContinuousBatcher
from s10_scheduler import Scheduler
from s11_chunked_prefill import ChunkedScheduler
from s12_preemption import SwappingScheduler
from s13_fairness import FairScheduler
from s14_unified_scheduler import UnifiedScheduler

def tiny(blocks, budget, **more):
    config = Config(num_blocks=blocks, block_size=4, max_num_batched_tokens=budget, max_num_seqs=2, watermark=0, **more)
    scheduler = Scheduler(config)
    scheduler.add(Request("accepted", range(3), 2))
    made.append(scheduler)
    return scheduler

def twice(scheduler):
    scheduler.add(Request("r", range(2), 1))
    scheduler.add(Request("r", range(2), 1))

verdicts = []
for expression in json.load(sys.stdin):
    made = []
    try:
        eval(expression)
        verdicts.append(["accepted", "", False, True])
    except CourseError as error:
        ends = [Engine(scheduler).run(1000) for scheduler in made]
        lost = any(s.waiting or s.running or r.end != "done" or not r.finished for s, r in zip(made, ends))
        verdicts.append([type(error).__name__, str(error), isinstance(error, ValueError), not lost])
print(json.dumps(verdicts))
"""


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list]:
    expressions = [row[0] for row in REFUSED]
    command = [sys.executable, "-S", "-c", SCRIPT]
    done = subprocess.run(command, input=json.dumps(expressions), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(zip(expressions, json.loads(done.stdout)))


@pytest.mark.parametrize(("expression", "error", "words"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_makes_no_sense_is_refused_by_type_and_number(verdicts, expression, error, words):
    name, text, is_value_error, nothing_lost = verdicts[expression]
    assert name == error and is_value_error, f"{name}: {text}"
    assert all(word in text for word in words.split()) and "\n" not in text, f"{text!r} lacks one of: {words}"
    assert nothing_lost, "what was accepted before did not finish"


def test_the_kit_imports_on_a_bare_python():
    stems = {path.stem for path in (ROOT / "code/kit").glob("*.py")} - {"__init__"}
    names = sorted(stem for stem in stems if not stem.endswith("widgets"))  # those need a library: ipywidgets, in notebooks
    code = "import sys; sys.path.insert(0, 'code')\n" + "\n".join(f"import kit.{name}" for name in names)
    done = python("-c", code)
    assert done.returncode == 0, done.stderr

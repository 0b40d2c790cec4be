"""The nearest peer on PyPI: sched-sim, a discrete-event simulator of LLM schedulers, chunked prefill among them.

It has its own roofline model, so its clock is not ours; what is compared is the CPU time that one workload takes. Looked at:
0.2.1, `ChunkedPrefillScheduler`. It never enforces its max_batch_size; the hour's load never comes near 256.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from time import process_time
from typing import Any

from kit.request import Request

NAME = "sched-sim"


def missing() -> str:
    """Why the peer can't run; empty if it can."""
    if importlib.util.find_spec("sched_sim") is None:
        return f"{NAME} is not installed; `pip install {NAME}` (Python 3.11 or later)"
    return ""


def run(requests: Sequence[Request], budget: int, seats: int) -> dict[str, float]:
    """Serve the requests with its chunked scheduler on its A100. Building its request objects is not counted."""
    from sched_sim.core.event_engine import Simulator  # type: ignore[import-not-found]
    from sched_sim.core.request import Request as Theirs  # type: ignore[import-not-found]
    from sched_sim.hardware.presets import PRESETS  # type: ignore[import-not-found]
    from sched_sim.schedulers.factory import create_scheduler  # type: ignore[import-not-found]

    hardware: Any = PRESETS["a100"]
    simulator = Simulator(hardware, create_scheduler("chunked", hardware, token_budget=budget, max_batch_size=seats))
    simulator.submit_workload(
        [
            Theirs(
                request_id=request.id,
                arrived_at=request.arrival_ns / 1e9,
                prompt_tokens=len(request.prompt),
                output_tokens=request.max_tokens,
            )
            for request in requests
        ]
    )
    began = process_time()
    metrics = simulator.run()
    return {"s": process_time() - began, "steps": metrics.total_iterations, "finished": metrics.completed_requests}

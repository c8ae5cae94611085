"""Check whether the cores of a worker are controlled where they should be.

A dry run, and model servers without a cgroup or container of their own, are intentionally not
controlled, so they are not reported as faults.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roma.ui.dashboard.rows import Worker

DRY_RUN = "dry-run"

STARTED = 3
"""Ticks after which a controlling supervisor has read and set the cores that it can."""


def judged(worker: Worker, states: Mapping[str, Any], expected: int) -> Worker:
    """Return a worker with the number of controlled executables, and the reason if none is.

    `states` maps executables to the states that the supervisor reports; `expected` is the number
    that should be controlled, from the dispatcher's configuration at start.
    """
    if worker.mode == DRY_RUN:
        return worker
    controllable = len(states) if worker.answers else expected
    controls = worker.answers and worker.mode == "control"
    controlled = sum(map(_is_controlled, states.values())) if controls else 0
    found = replace(worker, controllable=controllable, controlled=controlled)
    is_starting = worker.answers and controls and (worker.ticks or 0) < STARTED
    if controlled or not controllable or is_starting:
        return found
    return replace(found, uncontrolled=_why(worker, states))


def _is_controlled(state: Mapping[str, Any]) -> bool:
    return state.get("applied") is not None and not state.get("failure")


def _why(worker: Worker, states: Mapping[str, Any]) -> str:
    if not worker.answers:
        return f"its supervisor does not answer: {worker.error}"
    if worker.mode != "control":
        return worker.mode or "its supervisor does not say how"
    failures = (str(state["failure"]) for state in states.values() if state.get("failure"))
    return next(failures, "no cgroup of its executables can be read")

"""Seed profile: the cost of each model, measured at start through the device's lanes (§5.1).

Seconds include the hand-over to the lane's thread and back, as for every later action. They are
medians of a few runs: a dispatcher replaces them by its own measurements, and one slow run at start
must not make a model look too slow to be served at all.
"""

import logging
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from roma.device.lane import WorkThread
from roma.device.runtimes.base import Runtime, default_signature, example, sizes
from roma.device_protocol import Signature
from roma.domain.actions import BATCHES, ModelCapabilities, pages_of
from roma.domain.errors import LaunchError
from roma.domain.words import counted

RUNS = 5
"""Runs per model and batch size, after WARM_UP."""
WARM_UP = 2
"""Warm-up runs per batch size: the first runs choose kernels and fill caches."""

_log = logging.getLogger(__name__)


async def measure(
    runtime: Runtime, pages: int, runs: int = RUNS, batches: Sequence[int] = BATCHES
) -> dict[str, ModelCapabilities]:
    """Return the cost of every model; models that fail or exceed the device are left out.

    `batches` are the sizes to measure, smallest first; sizes that a model does not take are
    skipped. Raises LaunchError if no model is left.
    """
    loads, infers = WorkThread("load"), WorkThread("infer")
    loads.start()
    infers.start()
    offers: dict[str, ModelCapabilities] = {}
    try:
        for name, model in runtime.models.items():
            need = pages_of(model.weights)
            if need > pages:
                _log.error("model %s: pages = %d: must be ≤ %d, the device's", name, need, pages)
                continue
            try:
                known = runtime.known(name)
                lanes = loads, infers
                offers[name] = known or await _measured(runtime, name, lanes, runs, batches)
            except Exception as error:  # a model's fault affects only that model
                _log.error("model %s: cannot be measured, and is left out: %s", name, error)
                continue
            if known is None:
                _log.info("model %s: %s", name, _told(offers[name]))
    finally:
        await loads.stop(10.0)
        await infers.stop(10.0)
    if not offers:
        raise LaunchError("models: none can be served")
    return offers


async def _measured(
    runtime: Runtime,
    name: str,
    lanes: tuple[WorkThread, WorkThread],
    runs: int,
    batches: Sequence[int],
) -> ModelCapabilities:
    loads, infers = lanes
    model = runtime.models[name]
    which = default_signature(model.signatures)
    signature = model.signatures[which]
    load = await _median(loads, partial(runtime.load, name), 1)
    executions: dict[int, float] = {}
    takes_any = False
    faults: list[str] = []
    try:
        for batch in sizes(signature, batches):
            work = _work(runtime, name, which, signature, batch)
            try:
                for _ in range(WARM_UP):
                    await infers.run(work)
                executions[batch] = await _median(infers, work, runs)
            except Exception as error:  # it was exported for smaller batches, say
                faults.append(f"batch {batch}: {error}")
        odd = _between(executions)
        if odd is not None and all(spec.shape[0] == -1 for spec in signature.inputs):
            try:
                await infers.run(_work(runtime, name, which, signature, odd))
                takes_any = True
            except Exception as error:  # its signature claims any size, wrongly
                faults.append(f"batch {odd}: {error}")
    finally:
        await loads.run(partial(runtime.unload, name))
    for fault in faults:
        _log.warning("model %s: is not executed in this size: %s", name, fault)
    if not executions:
        raise LaunchError(faults[0] if faults else "its signature takes no batch")
    again = []
    for _ in range(2):  # the very first load runs with cold caches
        again.append(await _median(loads, partial(runtime.load, name), 1))
        await loads.run(partial(runtime.unload, name))
    load = statistics.median([load, *again])
    return ModelCapabilities(pages_of(model.weights), load, executions, takes_any)


def _work(
    runtime: Runtime, name: str, which: str, signature: Signature, batch: int
) -> Callable[[], Any]:
    """Return a function that executes one batch."""
    staged = runtime.stage(name, example(signature, batch))
    return partial(runtime.execute, name, which, staged)


def _between(executions: Collection[int]) -> int | None:
    """Return the smallest batch size not measured, below the largest one measured."""
    most = max(executions, default=0)
    return next((size for size in range(2, most) if size not in executions), None)


async def _median(lane: WorkThread, work: Any, runs: int) -> float:
    times = []
    for _ in range(runs):
        begun = time.monotonic()
        await lane.run(work)
        times.append(time.monotonic() - begun)
    return statistics.median(times)


def _told(offer: ModelCapabilities) -> str:
    times: Mapping[int, float] = offer.executions
    executions = ", ".join(f"B{b} {t * 1e3:.2f}" for b, t in times.items())
    sizes_between = ", and any between" if offer.any_batch else ""
    times_told = f"load {offer.load * 1e3:.2f}, {executions}{sizes_between}"
    return f"{counted(offer.pages, 'page')}; ms: {times_told}"

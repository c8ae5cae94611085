"""Predictability of a model that runs alone, and with concurrent threads (Clockwork, Fig. 2).

One thread executes the same batch repeatedly; then several do so at once. On Clockwork's V100,
ResNet50's 99.99th percentile is within 0.03 % of the median when it runs alone (Fig. 2a); with 16
threads throughput is 25 % higher, and tails are a hundred times as long (Fig. 2b).
"""

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roma.device.precise import tighten
from roma.device.runtimes.base import Runtime, default_signature, example
from roma.device_protocol import Array

PERCENTILES = (1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0)
WARM_UP = 20
"""Warm-up executions per thread, which are not counted."""


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """Measurements of a number of concurrent threads; latencies in seconds."""

    threads: int
    runs: int
    throughput: float
    """Batches per second, of all threads together."""
    percentiles: Mapping[float, float]
    """Latency by percentile."""

    @property
    def median(self) -> float:
        """Median latency of one batch, in seconds."""
        return self.percentiles[50.0]

    def excess(self, percentile: float) -> float:
        """Return the excess of a percentile over the median, as a share of the median."""
        return self.percentiles[percentile] / self.median - 1


def run(
    runtime: Runtime, model: str, *, batch: int = 1, runs: int = 2000, threads: Sequence[int] = (1,)
) -> list[LatencyRow]:
    """Return a row for each number of threads; `runs` are divided among them.

    Raises whatever the runtime raises.
    """
    signatures = runtime.models[model].signatures
    which = default_signature(signatures)
    inputs = example(signatures[which], batch)
    runtime.load(model)
    try:
        return [_row(runtime, (model, which, inputs), runs, count) for count in threads]
    finally:
        runtime.unload(model)


def to_json(rows: Sequence[LatencyRow]) -> list[dict[str, Any]]:
    """Return rows as JSON values; times in seconds."""
    return [
        {
            "threads": row.threads,
            "runs": row.runs,
            "throughput": row.throughput,
            "latency": {f"p{p:g}": value for p, value in row.percentiles.items()},
            "excess": {f"p{p:g}": row.excess(p) for p in row.percentiles},
        }
        for row in rows
    ]


def _row(
    runtime: Runtime, call: tuple[str, str, Mapping[str, Array]], runs: int, count: int
) -> LatencyRow:
    each = -(-runs // count)
    times = np.zeros((count, each))
    faults: list[Exception] = []
    together = threading.Barrier(count + 1)

    def work(times: NDArray[np.float64]) -> None:
        tighten()
        model, signature, inputs = call
        try:
            # As in a device server: the inputs are staged before the execution begins.
            execute = partial(runtime.execute, model, signature, runtime.stage(model, inputs))
            for _ in range(WARM_UP):
                execute()
            together.wait()
            for i in range(each):
                begun = time.perf_counter()
                execute()
                times[i] = time.perf_counter() - begun
        except threading.BrokenBarrierError:
            pass
        except Exception as error:  # raised in the caller
            faults.append(error)
            together.abort()

    workers = [threading.Thread(target=work, args=(row,), daemon=True) for row in times]
    for worker in workers:
        worker.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        together.wait()
    begun = time.perf_counter()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - begun
    if faults:
        raise faults[0]
    found = np.percentile(times, PERCENTILES, method="inverted_cdf").tolist()
    return LatencyRow(
        count, times.size, times.size / took, dict(zip(PERCENTILES, found, strict=True))
    )

"""How predictable a model is that runs alone, and what company does to it (Clockwork, Fig. 2).

One thread executes the same batch again and again; then several do at once. Clockwork's V100 has
ResNet50's 99.99th percentile within 0.03 % of the median when it runs alone (Fig. 2a); with 16
threads it has 25 % more throughput, and tails a hundred times as long (Fig. 2b).
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
"""Executions before the first that counts, per thread."""


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """So many threads at once; latencies in seconds."""

    threads: int
    runs: int
    throughput: float
    """Batches per second, of all threads together."""
    percentiles: Mapping[float, float]
    """Latency by percentile."""

    @property
    def median(self) -> float:
        """Seconds of one batch, half of the time."""
        return self.percentiles[50.0]

    def excess(self, percentile: float) -> float:
        """Return how much longer a percentile is than the median, as a part of it."""
        return self.percentiles[percentile] / self.median - 1


def run(
    runtime: Runtime, model: str, *, batch: int = 1, runs: int = 2000, threads: Sequence[int] = (1,)
) -> list[LatencyRow]:
    """Return a row for each number of threads; `runs` are divided among them.

    Raises what the runtime raises.
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
    """Return rows as JSON has them; seconds."""
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
            # As a worker has it: the inputs are there when the execution begins.
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
        except Exception as error:  # it is the caller's
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

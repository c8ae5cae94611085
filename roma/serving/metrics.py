"""Metrics of the model server: TensorFlow Serving's names, Prometheus' text format.

    :tensorflow:serving:request_count{model_name, status}
    :tensorflow:serving:request_latency{model_name, API, entrypoint}

The latency is in microseconds and covers requests with status OK. Requests for a model that is not
served are not counted, because callers could create any number of names.
Source: tensorflow_serving/servables/tensorflow/util.cc, util/prometheus_exporter.cc (2.19).
"""

import threading
from collections import Counter
from collections.abc import Iterator

from roma.domain.stats import Histogram

PATH = "/monitoring/prometheus/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4"

REST, GRPC = "REST", "GRPC"
"""Values of the label `entrypoint`."""

BOUNDS = tuple(10 * 1.8**i for i in range(33))
"""Upper bounds of the latency histogram in microseconds, up to about 20 minutes."""


class Meter:
    """Counts of answered requests; any thread may call `count`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._latencies: dict[tuple[str, str, str], Histogram] = {}

    def count(self, model: str, api: str, entrypoint: str, status: str, seconds: float) -> None:
        """Count one request; `status` is a gRPC code's name."""
        with self._lock:
            self._counts[model, status] += 1
            if status == "OK":
                key = (model, api, entrypoint)
                if key not in self._latencies:
                    self._latencies[key] = Histogram(BOUNDS)
                self._latencies[key].add(seconds * 1e6)

    def text(self) -> bytes:
        """Return all metrics as text."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines()).encode()

    def _lines(self) -> Iterator[str]:
        name = ":tensorflow:serving:request_count"
        yield f"# TYPE {name} counter"
        for (model, status), count in sorted(self._counts.items()):
            yield f"{name}{{{_labels(model_name=model, status=status)}}} {count}"
        name = ":tensorflow:serving:request_latency"
        yield f"# TYPE {name} histogram"
        for (model, api, entrypoint), found in sorted(self._latencies.items()):
            labels = _labels(model_name=model, API=api, entrypoint=entrypoint)
            total = 0
            for bound, count in zip((*found.bounds, None), found.counts, strict=True):
                total += count
                limit = "+Inf" if bound is None else f"{bound:g}"
                yield f'{name}_bucket{{{labels},le="{limit}"}} {total}'
            # In full: of six digits, a mean over the last minutes would be made of steps.
            yield f"{name}_sum{{{labels}}} {found.total!r}"
            yield f"{name}_count{{{labels}}} {total}"


def _labels(**values: str) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

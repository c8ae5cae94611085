"""Prometheus metrics, read from a program's own state at scrape time.

A scrape reads the state; there are no separate counters.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol

from aiohttp import web
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

Samples = Iterable[tuple[Sequence[str], float | None]]
"""Label values and a value, which is None if there is no data."""


def gauge(name: str, help: str, labels: Sequence[str], samples: Samples) -> Metric:  # noqa: A002 - Prometheus' word
    """Return the gauge `roma_NAME`; samples without a value are left out."""
    return _filled(GaugeMetricFamily(f"roma_{name}", help, labels=labels), samples)


def counter(name: str, help: str, labels: Sequence[str], samples: Samples) -> Metric:  # noqa: A002 - as above
    """Return the counter `roma_NAME_total`; samples without a value are left out."""
    return _filled(CounterMetricFamily(f"roma_{name}", help, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


class BucketCounts(Protocol):
    """Counts by upper bound of a `roma.domain.stats.Histogram`; the last is above all bounds."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float


class _LaterHistogram(HistogramMetricFamily):
    """A histogram with the counts of now, whose samples are made when somebody reads them.

    They are three quarters of a dispatcher's: with a fleet of models no request would be served
    while they are made.
    """

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - Prometheus' word
        labels: Sequence[str],
        found: Iterable[tuple[Sequence[str], BucketCounts]],
    ) -> None:
        super().__init__(name, help, labels=labels)
        self._left = [(v, b.bounds, b.counts.copy(), b.total) for v, b in found]

    @property
    def samples(self) -> list[Sample]:
        """The samples, in the order of the label values."""
        left, self._left = self._left, []
        for values, bounds, counts, total in left:
            limits = [*map(repr, bounds), "+Inf"]
            self.add_metric(values, list(zip(limits, accumulate(counts), strict=True)), total)
        return self._made

    @samples.setter
    def samples(self, made: list[Sample]) -> None:
        self._made, self._left = made, []


def histogram(
    name: str,
    help: str,  # noqa: A002 - as above
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], BucketCounts]],
) -> Metric:
    """Return the histogram `roma_NAME`: cumulative counts by `le`, sum and count."""
    return _LaterHistogram(f"roma_{name}", help, labels, samples)


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


async def encoded(accept: str, metrics: Iterable[Metric]) -> tuple[bytes, str]:
    """Return the text of `metrics` and its content type: the text format or OpenMetrics.

    The state is read immediately; the text, which takes longer, is made on a thread, so that a
    request waits only for a switch interval of the interpreter.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encode, content_type = choose_encoder("")
    return await asyncio.to_thread(encode, _Collected(list(metrics))), content_type


async def response(request: web.BaseRequest, metrics: Iterable[Metric]) -> web.Response:
    """Answer GET /metrics, in the format that the client accepts."""
    body, content_type = await encoded(request.headers.get("Accept", ""), metrics)
    return web.Response(body=body, headers={"Content-Type": content_type})

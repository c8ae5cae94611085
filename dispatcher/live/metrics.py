"""The dispatcher's side of the metrics: requests, queues and executables."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from dispatcher import reports
from dispatcher.core import Dispatcher
from roma.exchange import ModelReport
from roma.exposition import counter, gauge

_MODEL, _EXECUTABLE = ["model"], ["executable"]


def collect(core: Dispatcher, now: float) -> Iterator[Metric]:
    """Yield every metric; `now` is the core's clock, in seconds."""
    models = reports.reply(core, "", now).models
    yield counter(
        "requests",
        "Requests that arrived, by what became of them; those that still wait are not in it.",
        ["model", "device", "outcome"],
        (sample for m in models for sample in _outcomes(m)),
    )
    yield counter(
        "rejected_requests",
        "Requests refused, by the rule that refused them.",
        ["model", "reason"],
        (((m.model, reason), n) for m in models for reason, n in m.rejected.items()),
    )
    yield counter(
        "late_answers",
        "Answers that came after the model's SLA.",
        _MODEL,
        (((m.model,), m.late) for m in models),
    )
    yield counter(
        "invalid_answers",
        "Answers that refused the client's input.",
        _MODEL,
        (((m.model,), m.invalid) for m in models),
    )
    yield gauge(
        "queue_length", "Requests that wait.", _MODEL, (((m.model,), m.waiting) for m in models)
    )
    yield gauge(
        "requests_in_flight",
        "Requests that a model server is computing.",
        _MODEL,
        (((m.model,), m.in_flight) for m in models),
    )
    yield gauge(
        "oldest_request_age_seconds",
        "Age of the oldest request that waits or is computed.",
        _MODEL,
        (((m.model,), m.oldest_age) for m in models),
    )
    yield gauge(
        "response_time_seconds",
        "The statistic that the SLA bounds, over the last window; absent if nothing was answered.",
        _MODEL,
        (((m.model,), m.response_time) for m in models),
    )
    yield from _promises(core)
    yield from _executables(core)


def _outcomes(m: ModelReport) -> Iterable[tuple[tuple[str, str, str], float]]:
    yield (m.model, "cpu", "answered"), m.completed_cpu
    yield (m.model, "gpu", "answered"), m.completed_gpu
    yield (m.model, "", "failed"), m.failed
    yield (m.model, "", "cancelled"), m.cancelled
    yield (m.model, "", "rejected"), sum(m.rejected.values())


def _promises(core: Dispatcher) -> Iterator[Metric]:
    specs = [queue.spec for queue in core.queues.values()]
    yield gauge(
        "sla_seconds",
        "The promised response time.",
        _MODEL,
        (((spec.name,), spec.sla.response_time) for spec in specs),
    )
    yield gauge(
        "set_point_seconds",
        "Where control holds the response time: alpha times the SLA.",
        _MODEL,
        (((spec.name,), spec.sla.set_point) for spec in specs),
    )


def _executables(core: Dispatcher) -> Iterator[Metric]:
    found = list(core.executors)
    yield gauge(
        "executable_ready",
        "1 if the executable is loaded and reachable.",
        ["executable", "device"],
        (((e.spec.name, e.spec.device.value), float(e.live)) for e in found),
    )
    yield gauge(
        "executable_requests_in_flight",
        "Executions that run on the executable.",
        _EXECUTABLE,
        (((e.spec.name,), len(e.running)) for e in found),
    )
    yield gauge(
        "executable_in_flight_limit",
        "Most executions that may run on the executable at once.",
        _EXECUTABLE,
        (((e.spec.name,), e.limit) for e in found),
    )
    yield counter(
        "executable_executions",
        "Executions that the executable answered.",
        _EXECUTABLE,
        (((e.spec.name,), e.completed) for e in found),
    )

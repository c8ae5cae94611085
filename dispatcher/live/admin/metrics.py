"""The dispatcher's side of the metrics: requests, queues and executables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from dispatcher import reports
from dispatcher.core import Dispatcher
from dispatcher.live.http.server import Server
from dispatcher.live.unavailable import Reasons
from dispatcher.state.queues import Durations
from roma.domain.exchange import ModelReport
from roma.domain.model import Device
from roma.domain.stats import Histogram
from roma.security.admin_ports import AdminPorts
from roma.telemetry.prometheus import counter, gauge, histogram
from roma.ui.dashboard.rows import Worker

if TYPE_CHECKING:
    from dispatcher.live.planned.device import PlannedDevice

_MODEL, _EXECUTABLE, _PLACE = ["model"], ["executable"], ["executable", "device"]

_DURATIONS: tuple[tuple[str, str, Callable[[Durations], Histogram]], ...] = (
    ("request", "From arrival to the end of the execution", lambda d: d.request),
    ("queue", "From arrival to the start of the execution", lambda d: d.queue),
    ("execution", "From the start of the execution to its end", lambda d: d.execution),
)


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
        "sla_requests",
        "Requests that count for the promise: all but those of low priority and those that failed "
        "or were taken back by the client's own doing.",
        _MODEL,
        (((m.model,), m.ended) for m in models),
    )
    yield counter(
        "sla_late_requests",
        "Those of them that broke it: answered after the SLA, rejected, failed, or taken back by "
        "the client when they could not be in time any more.",
        _MODEL,
        (((m.model,), m.broken) for m in models),
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
        "Requests that a model server is computing, low-priority ones too.",
        _MODEL,
        (((m.model,), m.in_flight) for m in models),
    )
    yield gauge(
        "oldest_request_age_seconds",
        "Age of the oldest request that waits or is computed; low-priority ones do not count.",
        _MODEL,
        (((m.model,), m.oldest_age) for m in models),
    )
    yield gauge(
        "response_time_seconds",
        "The statistic of response times that control uses (mean, p95, p99 or longest), over the "
        "last window; absent if nothing was answered.",
        _MODEL,
        (((m.model,), m.response_time) for m in models),
    )
    yield from _low_priority(core)
    yield from _durations(core)
    yield from _promises(core)
    yield from _executables(core, now)


def _outcomes(m: ModelReport) -> Iterable[tuple[tuple[str, str, str], float]]:
    yield (m.model, "cpu", "answered"), m.completed_cpu
    yield (m.model, "gpu", "answered"), m.completed_gpu
    yield (m.model, "", "failed"), m.failed
    yield (m.model, "", "cancelled"), m.cancelled
    yield (m.model, "", "rejected"), sum(m.rejected.values())


def collect_gateway(
    server: Server, denied: Mapping[int, int], lookups: Mapping[str, int]
) -> Iterator[Metric]:
    """Yield the metrics of the clients' HTTP port.

    `denied` counts refused clients by status, `lookups` look-ups by source.
    """
    yield gauge(
        "gateway_connections",
        "Clients' connections that are open, those in their TLS handshake included.",
        [],
        [((), server.open)],
    )
    yield counter(
        "gateway_connections_refused",
        "Connections turned away because the limit was reached.",
        [],
        [((), server.turned_away)],
    )
    yield counter(
        "gateway_handshakes_failed",
        "Clients' connections that ended in their TLS handshake: refused, silent or not trusted.",
        [],
        [((), server.handshakes_failed)],
    )
    yield gauge(
        "gateway_buffered_bytes",
        "Bodies of requests, and gRPC messages, that are read or answered, and unread answers.",
        [],
        [((), server.buffered)],
    )
    yield gauge(
        "gateway_unsent_bytes",
        "Those of them that are answers which clients have not read yet.",
        [],
        [((), server.unsent)],
    )
    yield counter(
        "gateway_unread_answers_closed",
        "Clients closed for leaving an answer unread, to make room for others' requests.",
        [],
        [((), server.closed_unread)],
    )
    yield counter(
        "gateway_denied_requests",
        "Requests that were not let in: 401 caller unknown, 403 not for this model, 429 too many.",
        ["status"],
        (((str(status),), denied.get(status, 0)) for status in (401, 403, 429)),
    )
    yield counter(
        "gateway_lookups",
        "Requests for a model's status, metadata or readiness: sent to a model server, or answered "
        "with the answer to another one (executable, shared).",
        ["source"],
        (((source,), count) for source, count in lookups.items()),
    )


def collect_admin(ports: AdminPorts) -> Iterator[Metric]:
    """Yield the admin port's own metrics."""
    yield gauge(
        "admin_connections",
        "Connections of the admin port, and of its parts that have one of their own.",
        [],
        [((), len(ports.open))],
    )
    yield counter(
        "admin_connections_closed",
        "Those closed to make room for another one, for idleness, or for an unread answer.",
        [],
        [((), ports.closed)],
    )


def _low_priority(core: Dispatcher) -> Iterator[Metric]:
    queues = core.low_priority.items()
    yield counter(
        "low_priority_requests",
        "Low-priority requests by what became of them; no other counter of a model has them.",
        ["model", "outcome"],
        (
            ((name, outcome), count)
            for name, queue in queues
            for outcome, count in (
                ("answered", queue.completed.total()),
                ("failed", queue.failed),
                ("cancelled", queue.cancelled),
                ("rejected", queue.rejected.total()),
            )
        ),
    )
    yield gauge(
        "low_priority_queue_length",
        "Low-priority requests that wait.",
        _MODEL,
        (((name,), len(queue)) for name, queue in queues),
    )


def _durations(core: Dispatcher) -> Iterator[Metric]:
    # A device that a model neither has nor had would add 45 series of zeros.
    used = {(model, e.spec.device) for e in core.executors for model in e.spec.models}
    found = [
        ((queue.spec.name, device.value), durations)
        for queue in core.queues.values()
        for device, durations in ((Device.CPU, queue.cpu), (Device.GPU, queue.gpu))
        if (queue.spec.name, device) in used or durations.answered
    ]
    for name, meaning, which in _DURATIONS:
        yield histogram(
            f"{name}_duration_seconds",
            f"{meaning}, of answers that did not refuse the input; the model's SLA is a bucket.",
            ["model", "device"],
            ((labels, which(durations)) for labels, durations in found),
        )


def _promises(core: Dispatcher) -> Iterator[Metric]:
    specs = [queue.spec for queue in core.queues.values()]
    yield gauge(
        "sla_seconds",
        "The promised response time.",
        _MODEL,
        (((spec.name,), spec.sla.response_time) for spec in specs),
    )
    yield gauge(
        "sla_budget_ratio",
        "The share of requests that may be late; absent for a promise on the mean.",
        _MODEL,
        (((spec.name,), spec.sla.budget) for spec in specs),
    )
    yield gauge(
        "set_point_seconds",
        "Where control holds the response time: alpha times the SLA.",
        _MODEL,
        (((spec.name,), spec.sla.set_point) for spec in specs),
    )


def _executables(core: Dispatcher, now: float) -> Iterator[Metric]:
    found = list(core.executors)
    yield gauge(
        "executable_ready",
        "1 if the executable is loaded and reachable.",
        _PLACE,
        (((e.spec.name, e.spec.device.value), float(e.live)) for e in found),
    )
    yield gauge(
        "executable_ejected",
        "1 if the executable failed too often in a row and is out of rotation.",
        _EXECUTABLE,
        (((e.spec.name,), float(e.ejected)) for e in found),
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
    yield counter(
        "executable_busy_seconds",
        "Seconds in which at least one execution ran: its rate is a GPU's busy share.",
        _PLACE,
        (((e.spec.name, e.spec.device.value), e.busy(now)) for e in found),
    )
    yield counter(
        "executable_starts",
        "Times that the executable became ready: the first, and after each loss.",
        _EXECUTABLE,
        (((e.spec.name,), e.starts) for e in found),
    )
    yield counter(
        "executable_losses",
        "Times that the executable could no longer be reached.",
        _EXECUTABLE,
        (((e.spec.name,), e.losses) for e in found),
    )


def collect_reasons(core: Dispatcher, reasons: Reasons) -> Iterator[Metric]:
    """Yield the served models, and the known reasons why executables are not ready."""
    yield gauge(
        "model_ready",
        "1 if an executable can serve the model.",
        _MODEL,
        (((model,), float(core.executors.serve(model))) for model in core.queues),
    )
    known = ((e.spec.name, reasons.for_operators(e.spec.name)) for e in core.executors)
    yield gauge(
        "executable_fault_info",
        "1 while the executable cannot serve, or lacks a model, for this reason.",
        [*_EXECUTABLE, "reason"],
        (((name, reason), 1.0) for name, reason in known if reason),
    )


def collect_control(workers: Sequence[Worker]) -> Iterator[Metric]:
    """Yield the number of controlled executables among those that should be, at the last update."""
    yield gauge(
        "controllable_executables",
        "Executables of the worker whose cores are to be controlled: 0 in a dry run.",
        ["worker"],
        [((w.worker,), float(w.controllable)) for w in workers],
    )
    yield gauge(
        "controlled_executables",
        "Those of them whose cores its supervisor sets.",
        ["worker"],
        [((w.worker,), float(w.controlled)) for w in workers],
    )


def collect_devices(core: Dispatcher, devices: "Mapping[str, PlannedDevice]") -> Iterator[Metric]:
    """Yield the metrics of planned devices; those of their memory only while they are live."""
    yield from _variants(core)
    live = [(e.spec.name, e.planned) for e in core.executors if e.planned is not None]
    yield gauge(
        "device_pages",
        "Pages of 16 MiB for weights that a planned device has.",
        _EXECUTABLE,
        (((name,), device.offer.pages) for name, device in live),
    )
    yield gauge(
        "device_free_pages",
        "Those of them that no model takes.",
        _EXECUTABLE,
        (((name,), device.free) for name, device in live),
    )
    yield gauge(
        "device_models",
        "Models whose weights a planned device has, or is loading.",
        _EXECUTABLE,
        (((name,), len(device.held)) for name, device in live),
    )
    yield counter(
        "device_actions",
        "Actions that a planned device has ended, by how.",
        [*_EXECUTABLE, "action", "status"],
        (
            ((name, action, status.value), count)
            for name, device in devices.items()
            for (action, status), count in sorted(device.actions.items())
        ),
    )
    yield histogram(
        "device_overrun_seconds",
        "How much longer actions took than was predicted, of those that took longer.",
        [*_EXECUTABLE, "action"],
        _errors(devices, lambda d: d.overruns),
    )
    yield histogram(
        "device_underrun_seconds",
        "How much shorter actions took than was predicted, of all others.",
        [*_EXECUTABLE, "action"],
        _errors(devices, lambda d: d.underruns),
    )


def _errors(
    devices: "Mapping[str, PlannedDevice]",
    of: "Callable[[PlannedDevice], Mapping[str, Histogram]]",
) -> Iterator[tuple[tuple[str, str], Histogram]]:
    for name, device in devices.items():
        for action, errors in of(device).items():
            yield (name, action), errors


def _variants(core: Dispatcher) -> Iterator[Metric]:
    """Yield the choices between variants, for models that have some."""
    queues = [queue for queue in core.queues.values() if queue.accuracy]
    yield counter(
        "variant_answers",
        "Answers that did not refuse the input, by the variant that gave them.",
        ["model", "variant"],
        (((q.spec.name, v), q.answers[v]) for q in queues for v in q.accuracy),
    )
    yield counter(
        "quality",
        "What these answers were worth together: each its variant's accuracy, less for being late.",
        _MODEL,
        (((q.spec.name,), q.quality) for q in queues),
    )

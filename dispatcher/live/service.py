"""State and rules shared by the HTTP and gRPC front ends.

These are the served models, whether new requests are accepted, a request's context, and the log
lines and traces of requests that ended.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from dispatcher.live.auth.access import Access, Credentials, Grant
from dispatcher.live.backends.backend_address import BackendAddress
from dispatcher.live.context import AnyRoute, Context, Tracer, carried
from dispatcher.live.driver import Call, Driver, Outcome
from dispatcher.live.lookups import Lookups
from dispatcher.live.program import Program
from dispatcher.live.request_log import RequestLog
from dispatcher.live.unavailable import Reasons

if TYPE_CHECKING:
    from dispatcher.live.planned.translation import PlannedDevices

STARTING = 30.0
"""Seconds after the start in which a gateway waits for every model before it is ready for any."""

DRAIN_RETRY = 5.0
"""Seconds after which a client may try again while the gateway restarts."""

NAME = "roma"
VERSION = metadata.version("roma-control-plane")
EXTENSIONS: tuple[str, ...] = ("binary_tensor_data",)
"""The extensions of the Open Inference Protocol that pass both front ends, as reported to clients.
Which of them an executable supports is up to the executable."""

Scrape = Callable[[], Awaitable[tuple[bytes, str]]]
"""Returns the metrics in Prometheus' text format, and their content type."""


class Service:
    """The state that both front ends share."""

    def __init__(
        self,
        driver: Driver,
        endpoints: Mapping[str, BackendAddress],
        request_log: RequestLog,
        access: Access,
        tracer: Tracer | None = None,
        *,
        backend_timeout: float,
        planned_devices: "PlannedDevices | None" = None,
        reasons: Reasons | None = None,
    ) -> None:
        self.driver = driver
        self.planned_devices = planned_devices
        """The planned devices; None unless all executables are on them."""
        self.reasons = reasons or Reasons(driver.core)
        self.endpoints = endpoints
        self.tracer = tracer
        self.is_open = access.is_open
        """True if every client may call every model."""
        self._access = access
        self._request_log = request_log
        self.writes_all = request_log.writes_all
        """True if requests that were answered get a line as well."""
        self.scrape: Scrape | None = None
        """Collects metrics for clients; None where they may not read them."""
        self.program = Program()
        self.max_body: dict[str, int] = {}
        """Largest request body in bytes, of the models that have a bound of their own."""
        self.lookups = Lookups(driver, endpoints, timeout=backend_timeout)
        self.uncontrolled: Callable[[], Sequence[str]] = tuple
        """Returns the workers whose cores nothing controls, though something should."""
        self._began = driver.clock()
        self._was_ready = False
        """True once every model was served."""
        self.closing: set[str] = set()
        """Models that are being removed: new clients get the answer for an unknown model."""
        self.warming_up: set[str] = set()
        """Models added while we run: until they are loaded they do not make the gateway not
        ready."""

    def serves(self, model: str) -> bool:
        """Return True if new requests may name a model."""
        return model in self.driver.core.queues and model not in self.closing

    def too_large(self, model: str, size: int) -> str | None:
        """Return why a model accepts no request body of `size` bytes, or None."""
        most = self.max_body.get(model)
        if most is None or size <= most:
            return None
        return f"model {model}: request body of {size} bytes is larger than max_body_bytes {most}"

    def admit(self, who: Credentials, model: str | None) -> Grant:
        """Admit a caller, or raise `Denied`; must be called before the model is looked up.

        A caller that may not call a model must not learn whether it exists.
        """
        return self._access.admit(who, model, self.driver.clock())

    def check(self, grant: Grant, model: str) -> None:
        """Raise `Denied` if a caller admitted before its model was known may not call the model."""
        self._access.check(grant, model)

    def not_ready_reason(self, *, for_any: bool = False) -> str | None:
        """Return why new requests should go elsewhere, or None.

        `for_any`: as long as any model is served, the lack of others is no reason. While a gateway
        starts, it is: those that it replaces may still serve all.
        """
        core = self.driver.core
        missing = [model for model in core.queues if not core.executors.serve(model)]
        # A model that has answered has warmed up.
        self.warming_up = {
            m for m in missing if m in self.warming_up and not core.queues[m].completed
        }
        missing = [model for model in missing if model not in self.warming_up]
        if self.program.is_ending:
            return "draining"
        self._was_ready = self._was_ready or not missing
        has_started = self._was_ready or self.driver.clock() - self._began >= STARTING
        is_enough = for_any and has_started and any(map(core.executors.serve, core.queues))
        if missing and not is_enough:
            return f"no executable is ready for: {', '.join(missing)}"
        return None

    def ready(self) -> str:
        """Return the text for a readiness probe while it serves: known problems, if any."""
        uncontrolled = self.uncontrolled()
        if uncontrolled:
            return f"ready; nothing controls the cores of worker {', '.join(uncontrolled)}"
        return "ready"

    def not_ready(self, model: str) -> str:
        """Return the message for a client whose model has no ready executable."""
        reason = self.reasons.of_model(model)
        return f"no executable of model {model} is ready{': ' if reason else ''}{reason}"

    def context(
        self,
        request_id: str | None,
        traceparent: str | None,
        tracestate: str | None,
        route: AnyRoute | None,
    ) -> Context | None:
        """Return a request's context; the trace of an inference begins here."""
        context = carried(request_id, traceparent, tracestate)
        tracer = self.tracer
        if tracer is not None and route is not None and route.is_inference:
            context = context or Context()
            context.trace = tracer.begin(context, route, self.driver.clock())
        return context

    def on_ended(self, call: Call, outcome: Outcome) -> None:
        """Record how a call ended; its client has not been answered yet."""
        response_time = self.driver.clock() - call.arrived
        self._request_log.on_outcome(call, outcome, response_time)
        context = call.context
        if context is not None and context.trace is not None:
            context.trace.on_outcome(outcome, response_time, call.executor)

    def cancel(self, call: Call) -> None:
        """Cancel a call whose client went away."""
        driver = self.driver
        driver.cancel(call)
        self._request_log.on_cancelled(call, driver.clock() - call.arrived)
        if call.context is not None:
            self.end(call.context, None)

    def end(self, context: Context, status: int | None) -> None:
        """End a request's trace with the client's status, None if the client went away."""
        if context.trace is not None:
            context.trace.end(status, self.driver.clock())

"""`roma dispatcher`: one dispatcher as a program."""

import asyncio
import contextlib
import gc
import logging
import resource
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from dispatcher.assembly import build_core
from dispatcher.live.admin import metrics
from dispatcher.live.admin.dashboard_feed import DashboardFeed, feeding
from dispatcher.live.admin.server import Admin, Collect
from dispatcher.live.admin.supervisors import Supervisors
from dispatcher.live.auth import access
from dispatcher.live.auth.access import Access
from dispatcher.live.backends.backend_address import BackendAddress
from dispatcher.live.driver import Driver
from dispatcher.live.gateway import Gateway
from dispatcher.live.http.origins import Origins
from dispatcher.live.http.server import Server
from dispatcher.live.memory import FreeMemory
from dispatcher.live.model_registry import ModelRegistry
from dispatcher.live.program import ProgramStep
from dispatcher.live.reloading import Reloading
from dispatcher.live.request_log import RequestLog
from dispatcher.live.service import Scrape, Service
from dispatcher.live.unavailable import Reasons, following
from roma.config.gateway import GatewayConfig, LimitsConfig
from roma.config.reload import listen
from roma.config.schema import Config
from roma.config.security import is_loopback
from roma.config.sources import Sources
from roma.config.watched_file import looking
from roma.domain.errors import ConfigError, LaunchError, RomaError
from roma.security import exposure
from roma.security.admin_ports import AdminPorts
from roma.security.tls import server_context
from roma.telemetry import prometheus
from roma.telemetry.reachability import reason
from roma.telemetry.tasks import background, stop_signal, until, until_one_ends

if TYPE_CHECKING:
    from dispatcher.live.grpc.server import GatewayGrpcServer
    from dispatcher.live.planned.translation import PlannedDevices
    from dispatcher.live.tracing import OtelTracer

SHUTDOWN_TIMEOUT = 0.5
"""Seconds for connections to close after draining."""

LINGER = 1.0
"""Seconds during which open connections are read while draining.

A client that keeps its connection alive cannot know that the program is about to stop. Requests
that it sends in this time are served as usual, and the answer closes the connection (RFC 9112
section 9.6). After it, idle connections are closed."""

STARTUP_WAIT = 3.0
"""Seconds that one of several dispatchers waits for its executables and its share of them.

The others serve meanwhile; with no executables it would refuse requests that they could answer."""

GC_INTERVAL = 30.0
"""Seconds between two collections of young garbage: little accumulates, so each takes no time."""

RESERVED_FDS = 256
"""Descriptors that clients may not use: for executables, the admin port and files."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """A dispatcher that serves."""

    service: Service
    server: Server
    registry: ModelRegistry
    admin: Admin
    grpc: "GatewayGrpcServer | None" = None


@contextlib.asynccontextmanager
async def running(
    config: Config,
    *,
    insecure: bool = False,
    shared: bool = False,
    faults_file: Path | None = None,
    listens: bool = True,
) -> AsyncIterator[Running]:
    """Serve until the block ends; then stop accepting, drain and close.

    `shared`: other dispatchers of this machine may listen at the clients' port as well.
    `faults_file` is where a launcher records why model servers cannot run. Without `listens` the
    clients' HTTP port stays closed: another front end passes requests to the server's handler.
    """
    sources = _sources(config, insecure=insecure)
    endpoints: dict[str, BackendAddress] = {}
    gateway_config = config.gateway
    tracer = _tracer(gateway_config) if gateway_config.traces else None
    request_log = RequestLog(config.log.requests, asyncio.get_running_loop())
    driver = Driver(build_core(config), endpoints, backend_timeout=gateway_config.backend_timeout)
    epoch = secrets.token_hex(8)
    held = contextlib.AsyncExitStack()
    keeper = await held.enter_async_context(access.opened(gateway_config))
    reasons = await held.enter_async_context(following(driver.core, faults_file))
    service = Service(
        driver,
        endpoints,
        request_log,
        keeper,
        tracer,
        backend_timeout=gateway_config.backend_timeout,
        planned_devices=_planned_devices(config, driver, reasons),
        reasons=reasons,
    )
    server = Server(
        Gateway(service),
        gateway_config.limits,
        max_body_bytes=gateway_config.max_body_bytes,
        origins=_origins(gateway_config),
    )
    try:
        watch = await held.enter_async_context(feeding(driver, config, epoch, reasons))
        service.uncontrolled = lambda: watch.uncontrolled
        ports = held.enter_context(contextlib.closing(AdminPorts()))
        collect = _collector(service, server, keeper, watch, ports)
        service.scrape = _for_clients(gateway_config, collect)
        admin_server = Admin(
            driver,
            watch,
            Supervisors(config),
            epoch,
            collect,
            program=service.program,
            ports=ports,
        )
        await held.enter_async_context(admin_server.listening(config))
        refused: RomaError | None = None
        # A watcher never ends by itself: if a bug ends one, the program ends too and is restarted.
        async with asyncio.TaskGroup() as watchers:
            registry = ModelRegistry(
                config,
                driver,
                service,
                endpoints,
                watchers,
                sources=sources,
                on_workers=admin_server.set_workers,
            )
            if config.dispatcher_count > 1:
                await _first_look(driver, admin_server, len(config.workers))
            try:
                if listens:
                    await _listen(server, gateway_config, held, shared=shared)
                grpc = await _listen_for_grpc(service, server, gateway_config, held, shared=shared)
            except RomaError as error:
                refused = error  # from here it would be raised in a group
            else:
                service.program.step(ProgramStep.OPEN)
                yield Running(service, server, registry, admin_server, grpc)
                await _drain(service, server, grpc, gateway_config.drain_timeout)
            registry.stop()
        if refused is not None:
            raise refused
    finally:
        # Requests left after draining are given up: waiting for them twice would break the promise.
        service.program.step(ProgramStep.CLOSE)
        await server.close(SHUTDOWN_TIMEOUT)
        await held.aclose()
        await service.lookups.close()
        driver.close()
        request_log.close()
        for endpoint in endpoints.values():
            await endpoint.close()
        if tracer is not None:
            await tracer.close()


async def run(
    config: Config,
    file: Path,
    *,
    insecure: bool = False,
    shared: bool = False,
    admin_port: int | None = None,
    faults_file: Path | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; on SIGHUP reload the models of `file`."""
    # Objects that exist now stay, and requests leave no cycles: a collection every 700 allocations
    # would cost 8 % of the throughput.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    # One descriptor per client: the usual soft limit of 1024 is less than two full queues.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    stop = stop_signal()
    told = asyncio.Event()  # from now on: an unhandled signal ends a program
    listen(told)

    def adapt(read: Config) -> Config:
        own: dict[str, Any] = {} if admin_port is None else {"admin_port": admin_port}
        ports = 1 if read.gateway.grpc_port is None else 2
        own["limits"] = within(read.gateway.limits, most, ports)
        return read.model_copy(update={"gateway": read.gateway.model_copy(update=own)})

    async with running(
        adapt(config), insecure=insecure, shared=shared, faults_file=faults_file
    ) as serving:
        g = config.gateway
        log.info("gateway listens on %s", g.url)
        if g.grpc_port is not None:
            log.info("gateway listens for gRPC on %s:%d", g.host, g.grpc_port)
        if g.grpc_socket is not None:
            log.info("gateway listens for gRPC on %s", g.grpc_socket)
        reloading = Reloading(file, adapt, serving.registry, serving.server)
        serving.admin.reloading = reloading
        async with background(_tidy()):
            await until_one_ends(reloading.run(told), stop.wait())
        log.info("draining")


async def _tidy() -> None:
    """Collect the young garbage periodically: a failed connection leaves cycles behind.

    Also return memory that is free after a peak: the system may need it elsewhere.
    """
    free = FreeMemory()
    while True:
        await asyncio.sleep(GC_INTERVAL)
        gc.collect(1)
        await asyncio.to_thread(free.release)  # for a gigabyte it takes a tenth of a second


def within(limits: LimitsConfig, descriptors: int, ports: int = 1) -> LimitsConfig:
    """Return the limits with no more connections than there are descriptors for.

    Each of the clients' `ports`, HTTP's and gRPC's, may have that many. A gateway that gave its
    last descriptor to a client could no longer reach its executables or answer a probe.
    """
    most = max(1, (descriptors - min(RESERVED_FDS, descriptors // 2)) // ports)
    if limits.connections <= most:
        return limits
    if "connections" in limits.model_fields_set:  # otherwise the number is only a default
        log.warning(
            "gateway.limits.connections = %d: taken as %d, for this program may have %d open files "
            "(ulimit -Hn)%s",
            limits.connections,
            most,
            descriptors,
            ", and each of the clients' ports so many connections" if ports > 1 else "",
        )
    return limits.model_copy(update={"connections": most})


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Raise LaunchError for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise LaunchError(f"{what}: {reason(error)}") from error


async def _listen(
    server: Server, config: GatewayConfig, held: contextlib.AsyncExitStack, *, shared: bool
) -> None:
    """Open the clients' port; raise LaunchError naming the key of one that cannot be opened."""
    tls = None if config.tls is None else server_context(config.tls, "gateway.tls")
    await held.enter_async_context(looking(tls))
    with _refusals(f"gateway.port = {config.port}: cannot listen on {config.host}"):
        await server.listen(config.host, config.port, tls, shared=shared)


async def _listen_for_grpc(
    service: Service,
    http: Server,
    config: GatewayConfig,
    held: contextlib.AsyncExitStack,
    *,
    shared: bool,
) -> "GatewayGrpcServer | None":
    if not config.has_grpc:
        return None
    # An import that is not used must not delay the start.
    from dispatcher.live.grpc.callers import ServerTls  # noqa: PLC0415
    from dispatcher.live.grpc.server import GatewayGrpcServer  # noqa: PLC0415

    tls = None if config.tls is None else ServerTls(config.tls, "gateway.tls")
    await held.enter_async_context(looking(None if tls is None else tls.watched))
    server = GatewayGrpcServer(service, http, shared=shared)
    held.push_async_callback(server.close, SHUTDOWN_TIMEOUT)
    if config.grpc_port is not None:
        with _refusals(f"gateway.grpc_port = {config.grpc_port}: cannot listen on {config.host}"):
            credentials = None if tls is None else tls.credentials
            server.bind(config.host, config.grpc_port, credentials)
    if config.grpc_socket is not None:
        with _refusals(f"gateway.grpc_socket = {config.grpc_socket}: cannot listen there"):
            server.bind_socket(Path(config.grpc_socket))
    await server.start()
    return server


def _collector(
    service: Service,
    server: Server,
    keeper: Access,
    watch: DashboardFeed,
    ports: AdminPorts,
) -> Collect:
    """Return the collector of the metrics for a scrape."""
    driver, planned_devices = service.driver, service.planned_devices

    def collect() -> Iterator[Metric]:
        yield from metrics.collect(driver.core, driver.clock())
        yield from metrics.collect_reasons(driver.core, service.reasons)
        yield from metrics.collect_control(watch.view.workers)
        yield from metrics.collect_gateway(server, keeper.denied, service.lookups.counts)
        yield from metrics.collect_admin(ports)
        if planned_devices is not None:
            yield from metrics.collect_devices(driver.core, planned_devices.devices)

    return collect


def _for_clients(config: GatewayConfig, collect: Collect) -> Scrape | None:
    if not config.client_metrics:
        return None
    return lambda: prometheus.encoded("", collect())


def _origins(config: GatewayConfig) -> Origins:
    """Return the names and pages that the clients' port accepts."""
    is_open = not (config.keys or config.oidc or config.tls) and is_loopback(config.host)
    is_guarded = is_open or bool(config.names)
    return Origins((config.host, *config.names), config.cors_origins, is_guarded=is_guarded)


def _planned_devices(config: Config, driver: Driver, reasons: Reasons) -> "PlannedDevices | None":
    if not any(e.actions is not None for worker in config.workers for e in worker.executables):
        return None
    # An import that is not used must not delay the start.
    from dispatcher.live.planned.translation import PlannedDevices  # noqa: PLC0415

    return PlannedDevices(config, driver, reasons)


def _tracer(config: GatewayConfig) -> "OtelTracer":
    try:
        # An extra; and an import that is not used must not delay the start.
        from dispatcher.live.tracing import OtelTracer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"gateway.traces = true: {error.name} is missing: install the extra `otel` of "
            "roma-control-plane (in a checkout: pip install '.[otel]')"
        ) from error
    except ValueError as error:  # OpenTelemetry reads some of its variables when imported
        raise ConfigError(f"gateway.traces = true: OpenTelemetry: {error}") from error
    scheme = "http" if config.tls is None else "https"
    return OtelTracer(config.host, config.port, config.grpc_port, scheme=scheme)


def _sources(config: Config, *, insecure: bool) -> Sources:
    """Return the sources of executables, after warnings; raise ConfigError for what is unusable."""
    for warning in exposure.check(exposure.of_dispatcher(config), insecure=insecure):
        log.warning(warning)
    return Sources(config)


async def _first_look(driver: Driver, admin_server: Admin, supervisors: int) -> None:
    """Wait until every executable can be reached and every supervisor has reported our share.

    The wait is short: an executable may still be loading, and an absent supervisor is not waited
    for.
    """
    await until(
        lambda: (
            len(admin_server.heard) >= supervisors and all(e.live for e in driver.core.executors)
        ),
        STARTUP_WAIT,
    )


async def _drain(
    service: Service, server: Server, grpc: "GatewayGrpcServer | None", timeout: float
) -> None:
    """Answer what arrives on open connections for a moment, and close them; then wait for the rest.

    In-flight limits keep that wait short. gRPC's clients are told at once.
    """
    core, loop = service.driver.core, asyncio.get_running_loop()
    service.program.step(ProgramStep.STOP)
    server.is_draining = True
    server.stop_listening()
    if grpc is not None:
        grpc.stop_listening(timeout)

    def left() -> int:
        open_ = 0 if grpc is None else grpc.answering
        return max(core.live, server.answering, service.lookups.waiting, open_)

    lingering = loop.time() + min(LINGER, timeout)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            while server.connections and loop.time() < lingering:
                await asyncio.sleep(0.02)
            service.program.step(ProgramStep.DRAIN)
            while True:
                server.close_idle()  # those, too, that have become idle since
                if not left():
                    break
                await asyncio.sleep(0.02)
    if left():
        log.warning("gave up on %d requests after draining for %g s", left(), timeout)

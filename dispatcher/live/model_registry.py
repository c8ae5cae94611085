"""Model registry: the models and executables of roma.yaml, updated while the dispatcher runs.

An executable that is removed gets no more requests, finishes those it runs, and is forgotten. A
model that is removed is unknown to new clients at once; waiting requests still get their answers.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from dispatcher.live.backends.backend_address import BackendAddress, Channel
from dispatcher.live.backends.http_client import Pool
from dispatcher.live.driver import Driver
from dispatcher.live.health_checks import watch
from dispatcher.live.http.header_cache import HeaderCache
from dispatcher.live.http.messages import ResponseTemplate
from dispatcher.live.service import Service
from roma.config.diff import compare
from roma.config.executable import Executable
from roma.config.placement import executables
from roma.config.schema import Config
from roma.config.sources import Sources
from roma.config.workers import BackendKind
from roma.domain.events import (
    ExecutorAdded,
    ExecutorRemoved,
    ExecutorSuspected,
    ModelAdded,
    ModelRemoved,
    ModelsAssigned,
)
from roma.domain.model import slot_count
from roma.telemetry.tasks import until

log = logging.getLogger(__name__)


class ModelRegistry:
    """The executables of one driver.

    `endpoints` is filled, and a task of `watchers` monitors each of them. `on_workers` is called
    with each configuration that is followed.
    """

    def __init__(
        self,
        config: Config,
        driver: Driver,
        service: Service,
        endpoints: dict[str, BackendAddress],
        watchers: asyncio.TaskGroup,
        *,
        sources: Sources,
        on_workers: Callable[[Config], None] = lambda _: None,
    ) -> None:
        self._file = self._started = config
        self._sources = sources
        self._config = self._sources.applied(config)
        self._on_workers = on_workers
        self._turn = asyncio.Lock()
        self._driver = driver
        self._service = service
        self._endpoints = endpoints
        self._watchers = watchers
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._answer_heads: HeaderCache[ResponseTemplate] = HeaderCache()
        service.max_body = max_body(config)
        self._discovering = watchers.create_task(self._sources.follow(self._discover))
        self._add(executables(self._config), self._config)

    def stop(self) -> None:
        """Stop all monitoring."""
        self._discovering.cancel()
        for task in (*self._watching.values(), *self._leaving.values()):
            task.cancel()

    async def follow(self, config: Config) -> None:
        """Serve what `config` says; raise ConfigError, changing nothing, if that cannot be done."""
        async with self._turn:
            await self._follow(self._sources.applied(config))
            self._file = config
        log.info("models: %s", ", ".join(config.models))

    async def _discover(self) -> None:
        """Serve what sources list."""
        async with self._turn:
            await self._follow(self._sources.applied(self._file))
        log.info("executables: %s", ", ".join(e.name for e in executables(self._config)))

    async def _follow(self, config: Config) -> None:
        change = compare(self._config, config, self._started)
        if self._service.planned_devices is not None:
            self._service.planned_devices.check_models(config.model_specs)
        old, new = _called(self._config), _called(config)
        known = {e.name for e in old} | self._leaving.keys()
        kept = self._config.models.keys() & config.models.keys()
        self._on_workers(config)
        # What is new for models that stay serves before what goes is drained, which takes a while.
        early = [e for e in new if e.name not in known and kept.issuperset(e.spec.models)]
        self._add(early, config)
        specs = {spec.name: spec for spec in config.model_specs}
        self._service.closing.update(change.removed)
        await asyncio.gather(*(self._drained(model) for model in change.removed))
        # A GPU holds all models, so any change makes it a different executable.
        for e in old:
            if e not in new and not e.spec.is_planned:
                self._leaving[e.name] = self._watchers.create_task(self._remove(e.name))
        # What is found next must not wait for what still runs on a pod that goes.
        names = {e.name for e in new}
        awaited = [n for n in self._leaving if change.removed or n in names]
        await asyncio.gather(*(self._leaving[name] for name in awaited))
        for model in change.added:
            self._driver.handle(ModelAdded(specs[model]))
            self._service.warming_up.add(model)
        for e in new:
            if e.spec.is_planned:
                self._assign(e)
        for model in change.removed:
            self._driver.handle(ModelRemoved(model))
            self._service.closing.discard(model)
            self._service.warming_up.discard(model)
        self._config = config
        self._service.max_body = max_body(config)
        late = [e for e in new if e not in old and e not in early and not e.spec.is_planned]
        self._add(late, config)
        if self._service.planned_devices is not None:
            self._service.planned_devices.max_body = config.gateway.max_body_bytes

    def _add(self, placed: Iterable[Executable], config: Config) -> None:
        foreign = {w.name for w in config.workers if w.backend is BackendKind.STATIC}
        for executable in placed:
            name = executable.name
            if executable.spec.is_planned:
                self._add_device(executable)
                continue
            endpoint = self._endpoint(executable, config)
            self._endpoints[name] = endpoint
            self._driver.handle(ExecutorAdded(executable.spec))
            if (part := self._first_part(executable)) < 1:
                self._driver.on_applied(name, executable.spec.cores, part)
            watching = watch(
                name,
                executable.spec.models,
                endpoint,
                self._driver,
                self._service.reasons,
                is_foreign=executable.spec.worker in foreign,
            )
            self._watching[name] = self._watchers.create_task(watching)

    def _add_device(self, executable: Executable) -> None:
        planned_devices = self._service.planned_devices
        assert planned_devices is not None
        device = planned_devices.add(executable)
        self._driver.handle(ExecutorAdded(executable.spec))
        self._watching[executable.name] = self._watchers.create_task(device.run())

    def _assign(self, executable: Executable) -> None:
        """Let a planned device serve the models of the file; what it runs goes on."""
        assert self._service.planned_devices is not None
        name, models = executable.name, executable.spec.models
        self._driver.handle(ModelsAssigned(name, models))
        self._service.planned_devices.devices[name].assign(models)

    def _first_part(self, executable: Executable) -> float:
        """Return our part of an executable's slots until a supervisor reports it.

        Each of several dispatchers begins with one slot, which the supervisors reserve for it.
        Where no supervisor will report, it begins with as many as all of them can have.
        """
        count, spec = self._config.dispatcher_count, executable.spec
        if count == 1:
            return 1.0
        slots = slot_count(spec.cores, spec.threads, spec.in_flight)
        mine = 1 if executable.controlled else max(1, slots // count)
        return mine / slots

    def _endpoint(self, executable: Executable, config: Config) -> BackendAddress:
        most = max(
            config.models[model].max_answer_bytes or config.gateway.max_answer_bytes
            for model in executable.spec.models
        )
        channel: Channel | None = None
        if executable.grpc is not None and config.gateway.has_grpc:
            # An import that is not used must not delay the start.
            from dispatcher.live.grpc.channel import GrpcChannel  # noqa: PLC0415

            channel = GrpcChannel(*executable.grpc, most=most)
        pool = Pool(
            executable.host,
            executable.port,
            executable.socket,
            most=most,
            kinds=self._answer_heads,
        )
        return BackendAddress(pool, channel)

    async def _remove(self, name: str) -> None:
        """Remove an executable once its requests have ended, or `gateway.drain_timeout` has."""
        try:
            await self._drain(name)
        finally:
            del self._leaving[name]

    async def _drain(self, name: str) -> None:
        executor = self._driver.core.executors[name]
        self._watching.pop(name).cancel()
        if executor.live:
            self._driver.handle(ExecutorSuspected(name))  # it gets no more requests
            await until(lambda: not executor.running, self._config.gateway.drain_timeout)
        self._driver.handle(ExecutorRemoved(name))
        self._driver.suspects.pop(name, None)
        self._service.reasons.note(name)
        await self._endpoints.pop(name).close()

    async def _drained(self, model: str) -> None:
        """Wait for a model's requests, but no longer than a graceful shutdown takes."""
        core = self._driver.core
        await until(
            lambda: (
                not core.queues[model]
                and not core.low_priority.get(model)
                and all(e.model != model for e in core.running())
            ),
            self._config.gateway.drain_timeout,
        )


def _called(config: Config) -> list[Executable]:
    """Return the executables without the bounds of their cores, which are the supervisors'.

    A pod whose CPU request moves is served on: it would be drained first.
    """
    return [replace(e, min_cores=0.0, max_cores=0.0) for e in executables(config)]


def max_body(config: Config) -> dict[str, int]:
    """Return the bounds of request bodies in bytes by model, for models that have one."""
    bounds = {name: model.max_body_bytes for name, model in config.models.items()}
    return {name: int(bound) for name, bound in bounds.items() if bound is not None}

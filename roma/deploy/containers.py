"""A worker's broker and its containers: created when a deployment starts, removed when it ends.

If the launcher is killed, the containers keep serving. The next `roma up` of the same deployment
keeps those that still match roma.yaml.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from roma.config.executable import Executable
from roma.config.placement import on_worker
from roma.config.schema import Config
from roma.config.workers import WorkerConfig
from roma.deploy.child import MODULE, Child
from roma.domain.errors import ActuationError, BrokerRefused, EngineError, LaunchError
from supervisor.broker.broker import Broker
from supervisor.broker.client import BrokerClient, calling
from supervisor.broker.containers import Container
from supervisor.broker.engine import connected
from supervisor.broker.server import LAUNCHER, run_dir

BROKER_TIMEOUT = 20.0
"""Seconds until a broker listens; for an engine behind ssh it has to connect first."""


class _Owner(Protocol):
    """The owner of containers: a broker, or a client of it."""

    async def containers(self) -> Mapping[str, Container]: ...

    async def known(self) -> Mapping[str, Sequence[str]]: ...

    async def create(self, name: str) -> None: ...

    async def remove(self, name: str) -> None: ...


class WorkerContainers:
    """The containers of one worker. `broker` is None if this process holds the engine's socket."""

    def __init__(
        self, config: Config, worker: WorkerConfig, owner: _Owner, broker: Child | None
    ) -> None:
        self.broker = broker
        self._config = config
        self._worker = worker.name
        self._owner = owner
        self._made: dict[str, dict[str, tuple[Path | None, str | None]]] = {}
        """The models of each container, with the places of their files."""

    async def create(self) -> None:
        """Create what `config` asks for; a GPU container is recreated for a new model."""
        await self._remove_others()
        files = {name: (m.path, m.volume) for name, m in self._config.models.items()}
        wanted = {e.name: {m: files[m] for m in e.spec.models} for e in self._placed()}
        # One that is to be made anew is none until that is done: making it may fail half-way.
        made = self._made = {
            name: found
            for name, found in self._made.items()
            if name in wanted and wanted[name].items() <= found.items()
        }
        new = [name for name in wanted if name not in made]
        await _each(self._owner.create, new)
        made |= {name: wanted[name] for name in new}

    async def remove(self) -> None:
        """Remove all of them, including those of a half-finished change."""

        async def remove(name: str) -> None:
            # Another program's container of that name stays, as `create` has said.
            with contextlib.suppress(BrokerRefused):
                await self._owner.remove(name)

        found = await self._owner.containers()
        await _each(remove, {*found, *(e.name for e in self._placed())})

    async def follow(self, config: Config) -> None:
        """Apply another configuration: remove and create containers. A retry completes the rest."""
        self._config = config
        if isinstance(self._owner, Broker):
            self._owner.follow(config)
        elif self.broker is not None:
            self.broker.signal(signal.SIGHUP)
            await self._until_known()
        await self.create()

    async def _remove_others(self) -> None:
        """Remove containers that this deployment created and the file no longer asks for."""
        found = await self._owner.containers()
        wanted = {e.name for e in self._placed()}
        await _each(self._owner.remove, [name for name in found if name not in wanted])

    async def _until_known(self) -> None:
        """Wait until the broker has read the new configuration."""
        wanted = {e.name: list(e.spec.models) for e in self._placed()}
        deadline = asyncio.get_running_loop().time() + BROKER_TIMEOUT
        while await self._owner.known() != wanted:
            if asyncio.get_running_loop().time() > deadline:
                raise EngineError(f"the broker of worker {self._worker} does not follow the file")
            await asyncio.sleep(0.1)

    def _placed(self) -> list[Executable]:
        return on_worker(self._config, self._config.worker(self._worker))


@contextlib.asynccontextmanager
async def containers(
    config: Config, worker: WorkerConfig, file: Path, log_dir: Path | None
) -> AsyncIterator[WorkerContainers]:
    """Run a worker's containers until the block ends.

    Raises LaunchError if the broker does not start, or if a container cannot be created.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            broker, owner = await _owner(stack, config, worker, file, log_dir)
            found = WorkerContainers(config, worker, owner, broker)
            stack.push_async_callback(found.remove)
            await found.create()
        except ActuationError as error:
            raise LaunchError(f"workers.{worker.name}: {error}") from error
        yield found


async def _owner(
    stack: contextlib.AsyncExitStack,
    config: Config,
    worker: WorkerConfig,
    file: Path,
    log_dir: Path | None,
) -> tuple[Child | None, _Owner]:
    if worker.containers.direct:
        engine = await stack.enter_async_context(connected(worker.containers))
        return None, Broker(config, worker, engine, asyncio.get_running_loop().time)
    broker = Child(
        f"broker.{worker.name}",
        [*MODULE, "roma", "broker", str(file), "--worker", worker.name],
        log_dir=log_dir,
        hears=True,
    )
    broker.start()
    stack.push_async_callback(broker.stop)
    path = run_dir(config, worker) / LAUNCHER
    client = await stack.enter_async_context(calling(path, BROKER_TIMEOUT))
    await _until_it_answers(broker, client)
    return broker, client


async def _until_it_answers(broker: Child, client: BrokerClient) -> None:
    said: ActuationError | None = None
    try:
        async with asyncio.timeout(BROKER_TIMEOUT):
            while not broker.fatal.done():
                try:
                    await client.containers()
                except ActuationError as error:
                    said = error
                    await asyncio.sleep(0.1)
                else:
                    return
    except TimeoutError:
        raise LaunchError(f"no broker after {BROKER_TIMEOUT:g} s: {said}") from None
    raise broker.fatal.result()


async def _each(act: Callable[[str], Awaitable[None]], names: Iterable[str]) -> None:
    """Act on every executable concurrently; raise the first error once all have finished."""
    results = await asyncio.gather(*(act(name) for name in names), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result

"""Executables that come and go without a change of roma.yaml: those that backends discover.

A source lists a worker's executables as the file would. So what follows a changed file follows a
source, too: its programs go on with the configuration that `Sources.applied` returns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from roma.config.backends import registry as backends
from roma.config.backends.base import ExecutableSource
from roma.config.schema import Config
from roma.config.workers import ExecutableConfig, WorkerConfig


class Sources:
    """The sources of a deployment's workers, and what each listed last."""

    def __init__(self, config: Config) -> None:
        self._sources = {
            worker.name: source
            for worker in config.workers
            if (source := backends.of(worker).source(config, worker)) is not None
        }
        self._listed: dict[str, tuple[ExecutableConfig, ...]] = {}

    def applied(self, config: Config) -> Config:
        """Return a configuration with the executables that are known now; others are absent."""
        if not self._sources:
            return config
        workers = tuple(self._applied(config, worker) for worker in config.workers)
        return config.model_copy(update={"workers": workers})

    def _applied(self, config: Config, worker: WorkerConfig) -> WorkerConfig:
        if worker.name not in self._sources:
            return worker
        known = tuple(
            e
            for e in self._listed.get(worker.name, ())
            if e.model is None or e.model in config.models
        )
        return worker.model_copy(update={"executables": known})

    def of(self, worker: str) -> ExecutableSource | None:
        """Return the source of a worker; None if the file determines its executables."""
        return self._sources.get(worker)

    async def follow(self, apply: Callable[[], Awaitable[object]]) -> None:
        """Follow the sources and call `apply` after changes, for ever; return if there are none."""
        if not self._sources:
            return
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as following:
            for name in self._sources:
                following.create_task(self._follow(name, changed))
            while True:
                await changed.wait()
                changed.clear()
                await apply()

    async def _follow(self, worker: str, changed: asyncio.Event) -> None:
        async for listed in self._sources[worker].lists():
            if listed != self._listed.get(worker):
                self._listed[worker] = listed
                changed.set()


def fixed(config: Config) -> Iterator[WorkerConfig]:
    """Yield the workers as the file determines them: without what sources list."""
    for worker in config.workers:
        is_discovered = backends.of(worker).discovers
        yield worker.model_copy(update={"executables": ()}) if is_discovered else worker

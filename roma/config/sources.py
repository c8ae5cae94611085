"""Workers and executables that come and go without a change of roma.yaml: what backends discover.

A source lists them as the file would. So what follows a changed file follows a source, too: its
programs go on with the configuration that `Sources.applied` returns.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator

from roma.config.backends import registry as backends
from roma.config.backends.base import ExecutableSource, WorkerSource
from roma.config.schema import Config
from roma.config.workers import ExecutableConfig, WorkerConfig

log = logging.getLogger(__name__)


class Sources:
    """The sources of a deployment's workers, and what each listed last."""

    def __init__(self, config: Config) -> None:
        """Make the sources of a file's workers; raise ConfigError for unusable credentials."""
        found = {w.name: backends.of(w).source(config, w) for w in config.workers}
        self._sources = {name: source for name, source in found.items() if source is not None}
        self._listed: dict[str, tuple[ExecutableConfig | WorkerConfig, ...]] = {}
        self._left_out: set[str] = set()

    def applied(self, config: Config) -> Config:
        """Return a configuration with what is known now; other executables are absent.

        The workers for which an entry stands follow the entries of the file, which stay. A node is
        that of the entry that names it, else of the first that matches it.
        """
        if not self._sources:
            return config
        workers = [self._applied(config, worker) for worker in config.workers]
        names, nodes = {w.name for w in workers}, {w.node for w in workers}
        left_out = set()
        for entry in config.workers:
            for one in self._listed.get(entry.name, ()):
                if not isinstance(one, WorkerConfig):
                    continue
                if one.name in names or one.node in nodes:
                    left_out.add(f"workers.{entry.name}: node {one.node} is another worker's")
                    continue
                names.add(one.name)
                nodes.add(one.node)
                workers.append(_served(config, one, one.executables))
        for line in sorted(left_out - self._left_out):
            log.warning("%s", line)
        self._left_out = left_out
        return config.model_copy(update={"workers": tuple(workers)})

    def _applied(self, config: Config, worker: WorkerConfig) -> WorkerConfig:
        if worker.name not in self._sources:
            return worker
        listed = self._listed.get(worker.name, ())
        return _served(config, worker, [e for e in listed if isinstance(e, ExecutableConfig)])

    def of(self, worker: WorkerConfig) -> ExecutableSource | WorkerSource | None:
        """Return the source of a worker; None if the file determines its executables."""
        return self._sources.get(worker.entry)

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


def _served(
    config: Config, worker: WorkerConfig, listed: Iterable[ExecutableConfig]
) -> WorkerConfig:
    """Return a worker with those executables whose models the file has."""
    known = tuple(e for e in listed if e.model is None or e.model in config.models)
    return worker.model_copy(update={"executables": known})


def fixed(config: Config) -> Iterator[WorkerConfig]:
    """Yield the workers as the file determines them: without what sources list."""
    for worker in config.workers:
        if worker.entry == worker.name:
            discovers = backends.of(worker).discovers
            yield worker.model_copy(update={"executables": ()}) if discovers else worker
